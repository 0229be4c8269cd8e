# ANTLR: the tool (a jar), the C++ runtime, and the grammar's generated parser as planc_grammar.
# Tool and runtime must lie on the same side of 4.10, where the serialised grammar changed.
find_package(Java QUIET COMPONENTS Runtime)
find_program(ANTLR_TOOL NAMES antlr4)
find_path(ANTLR_INCLUDE antlr4-runtime.h PATH_SUFFIXES antlr4-runtime)
find_library(ANTLR_LIBRARY NAMES libantlr4-runtime.a antlr4-runtime)
if(NOT ANTLR_TOOL OR NOT ANTLR_INCLUDE OR NOT ANTLR_LIBRARY)
  message(FATAL_ERROR "ANTLR 4 is missing: apt install antlr4 libantlr4-runtime-dev; or run ./dev build")
endif()

execute_process(COMMAND ${ANTLR_TOOL} OUTPUT_VARIABLE ANTLR_HELP ERROR_VARIABLE ANTLR_HELP)
string(REGEX MATCH "Version ([0-9]+\\.[0-9]+)" ANTLR_FOUND "${ANTLR_HELP}")
set(ANTLR_VERSION ${CMAKE_MATCH_1})
if(NOT ANTLR_FOUND)
  message(FATAL_ERROR "'${ANTLR_TOOL}' does not run (is Java there?): ${ANTLR_HELP}")
endif()
# SerializedATNView came with runtime 4.10.
if(EXISTS ${ANTLR_INCLUDE}/atn/SerializedATNView.h)
  set(ANTLR_RUNTIME_NEW TRUE)
endif()
if((ANTLR_VERSION VERSION_LESS 4.10 AND ANTLR_RUNTIME_NEW) OR
   (ANTLR_VERSION VERSION_GREATER_EQUAL 4.10 AND NOT ANTLR_RUNTIME_NEW))
  message(FATAL_ERROR "ANTLR's tool is ${ANTLR_VERSION}, and its C++ runtime is on the other side of "
                      "4.10: the two do not fit; set ANTLR_TOOL to another antlr4")
endif()
message(STATUS "ANTLR ${ANTLR_VERSION}")

set(GRAMMAR ${CMAKE_SOURCE_DIR}/grammar/Plan.g4)
set(GENERATED ${CMAKE_BINARY_DIR}/generated/grammar)
set(GRAMMAR_SOURCES ${GENERATED}/PlanLexer.cpp ${GENERATED}/PlanParser.cpp)
add_custom_command(
  OUTPUT ${GRAMMAR_SOURCES} ${GENERATED}/PlanLexer.h ${GENERATED}/PlanParser.h
  COMMAND ${ANTLR_TOOL} -Dlanguage=Cpp -no-listener -no-visitor -Werror -package planc::grammar
          -o ${GENERATED} -Xexact-output-dir ${GRAMMAR}
  DEPENDS ${GRAMMAR}
  VERBATIM)
add_library(planc_grammar STATIC ${GRAMMAR_SOURCES})
# The generated sources do not compile as C++20 (u8 literals), and warn.
set_target_properties(planc_grammar PROPERTIES CXX_STANDARD 17)
target_compile_options(planc_grammar PRIVATE -w)
target_include_directories(planc_grammar SYSTEM PUBLIC ${GENERATED} ${ANTLR_INCLUDE})
target_link_libraries(planc_grammar PUBLIC ${ANTLR_LIBRARY})
