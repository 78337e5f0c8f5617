# Third-party libraries, all from Debian 12. Each becomes one imported target.
find_package(Threads REQUIRED)
find_package(Eigen3 3.4 REQUIRED NO_MODULE)
if(TAPESTRY_OPENMP)
  find_package(OpenMP REQUIRED COMPONENTS CXX)
endif()

# The OpenMP flavour of OpenBLAS by its own path: the alternatives link may choose the pthread
# flavour, which runs a second thread pool beside OpenMP.
find_library(TAPESTRY_OPENBLAS_LIBRARY NAMES openblas
  PATHS /usr/lib/${CMAKE_LIBRARY_ARCHITECTURE}/openblas-openmp NO_DEFAULT_PATH REQUIRED)
find_path(TAPESTRY_OPENBLAS_INCLUDE NAMES cblas.h
  PATHS /usr/include/${CMAKE_LIBRARY_ARCHITECTURE}/openblas-openmp NO_DEFAULT_PATH REQUIRED)
cmake_path(GET TAPESTRY_OPENBLAS_LIBRARY PARENT_PATH TAPESTRY_OPENBLAS_DIR)

find_package(dnnl REQUIRED)
find_package(MPI REQUIRED COMPONENTS CXX)
find_package(yaml-cpp REQUIRED)
find_package(spdlog REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(Boost REQUIRED COMPONENTS program_options)
find_package(PkgConfig REQUIRED)
pkg_check_modules(SENTENCEPIECE REQUIRED IMPORTED_TARGET sentencepiece)
