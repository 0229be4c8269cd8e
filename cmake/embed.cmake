# Writes FILES (relative to ROOT) into OUTPUT as `{"name", R"plan(text)plan"},` lines.
set(text "")
foreach(file IN LISTS FILES)
  file(READ ${ROOT}/${file} content)
  string(APPEND text "{\"${file}\", R\"plan(${content})plan\"},\n")
endforeach()
file(WRITE ${OUTPUT} "${text}")
