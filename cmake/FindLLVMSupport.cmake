# LLVM's ADT and Support, versions 14 to 19, as the target LLVMSupportForPlanc.
find_package(LLVM QUIET CONFIG HINTS /usr/lib/llvm-14 /usr/lib/llvm-18 /usr/lib/llvm-19
             /usr/lib/llvm-17 /usr/lib/llvm-16 /usr/lib/llvm-15)
if(NOT LLVM_FOUND)
  message(FATAL_ERROR "LLVM's development files (14 to 19) are missing: apt install llvm-14-dev on "
                      "Debian 12, llvm-18-dev on Ubuntu 24.04; or run ./dev build")
endif()
if(LLVM_VERSION_MAJOR LESS 14 OR LLVM_VERSION_MAJOR GREATER 19)
  message(WARNING "planc is tested with LLVM 14 to 19; this is ${LLVM_VERSION}")
endif()
message(STATUS "LLVM ${LLVM_VERSION}")
llvm_map_components_to_libnames(PLANC_LLVM_LIBS support)
add_library(LLVMSupportForPlanc INTERFACE)
target_include_directories(LLVMSupportForPlanc SYSTEM INTERFACE ${LLVM_INCLUDE_DIRS})
target_link_libraries(LLVMSupportForPlanc INTERFACE ${PLANC_LLVM_LIBS})
set(PLANC_LLVM_TOOLS ${LLVM_TOOLS_BINARY_DIR})

# planc_embed(glob output out_var): the files as entries {"name", R"(text)"}, for #include.
function(planc_embed glob output out_var)
  file(GLOB files RELATIVE ${CMAKE_SOURCE_DIR} CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/${glob})
  list(TRANSFORM files PREPEND ${CMAKE_SOURCE_DIR}/ OUTPUT_VARIABLE paths)
  add_custom_command(
    OUTPUT ${output}
    COMMAND ${CMAKE_COMMAND} -DOUTPUT=${output} -DROOT=${CMAKE_SOURCE_DIR} "-DFILES=${files}"
            -P ${CMAKE_SOURCE_DIR}/cmake/embed.cmake
    DEPENDS ${paths} ${CMAKE_SOURCE_DIR}/cmake/embed.cmake
    VERBATIM)
  set(${out_var} ${output} PARENT_SCOPE)
endfunction()
