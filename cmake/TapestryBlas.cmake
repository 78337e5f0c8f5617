# Tapestry::openblas, the OpenMP flavour of OpenBLAS by its own path: the alternatives link may choose
# the pthread flavour, which runs a second thread pool beside OpenMP. Used by the build and by the
# installed package.
find_library(TAPESTRY_OPENBLAS_LIBRARY NAMES openblas
  PATHS /usr/lib/${CMAKE_LIBRARY_ARCHITECTURE}/openblas-openmp NO_DEFAULT_PATH)
find_path(TAPESTRY_OPENBLAS_INCLUDE NAMES cblas.h
  PATHS /usr/include/${CMAKE_LIBRARY_ARCHITECTURE}/openblas-openmp NO_DEFAULT_PATH)
mark_as_advanced(TAPESTRY_OPENBLAS_LIBRARY TAPESTRY_OPENBLAS_INCLUDE)
if(TAPESTRY_OPENBLAS_LIBRARY AND NOT TARGET Tapestry::openblas)
  cmake_path(GET TAPESTRY_OPENBLAS_LIBRARY PARENT_PATH TAPESTRY_OPENBLAS_DIR)
  add_library(Tapestry::openblas SHARED IMPORTED GLOBAL)
  set_target_properties(Tapestry::openblas PROPERTIES
    IMPORTED_LOCATION "${TAPESTRY_OPENBLAS_LIBRARY}")
endif()

# Tapestry::onednn, by its library and header: Debian's own CMake file for oneDNN also asks for the
# development files of OpenCL, which nothing here needs.
find_library(TAPESTRY_ONEDNN_LIBRARY NAMES dnnl)
find_path(TAPESTRY_ONEDNN_INCLUDE NAMES dnnl.hpp)
mark_as_advanced(TAPESTRY_ONEDNN_LIBRARY TAPESTRY_ONEDNN_INCLUDE)
if(TAPESTRY_ONEDNN_LIBRARY AND TAPESTRY_ONEDNN_INCLUDE AND NOT TARGET Tapestry::onednn)
  add_library(Tapestry::onednn SHARED IMPORTED GLOBAL)
  set_target_properties(Tapestry::onednn PROPERTIES
    IMPORTED_LOCATION "${TAPESTRY_ONEDNN_LIBRARY}"
    INTERFACE_INCLUDE_DIRECTORIES "${TAPESTRY_ONEDNN_INCLUDE}")
endif()
