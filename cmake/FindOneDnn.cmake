# oneDNN's C interface, as the target OneDnnForPlanc. Its own CMake package would ask for OpenCL,
# which planc does not use.
find_path(ONEDNN_INCLUDE dnnl.h)
find_library(ONEDNN_LIBRARY dnnl)
if(NOT ONEDNN_INCLUDE OR NOT ONEDNN_LIBRARY)
  message(FATAL_ERROR "oneDNN is missing: apt install libdnnl-dev; or run ./dev build")
endif()
add_library(OneDnnForPlanc INTERFACE)
target_include_directories(OneDnnForPlanc SYSTEM INTERFACE ${ONEDNN_INCLUDE})
target_link_libraries(OneDnnForPlanc INTERFACE ${ONEDNN_LIBRARY})
