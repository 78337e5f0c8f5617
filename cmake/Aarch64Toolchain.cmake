# Cross-compiles for 64-bit ARM with Debian's compiler (g++-aarch64-linux-gnu), libraries from
# TAPESTRY_AARCH64_ROOT and test programs run by qemu. scripts/aarch64.sh makes that root and uses
# this file.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)

set(TAPESTRY_AARCH64_ROOT "" CACHE PATH "Folder with Debian's arm64 libraries")
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES TAPESTRY_AARCH64_ROOT)
set(CMAKE_FIND_ROOT_PATH "${TAPESTRY_AARCH64_ROOT}")
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
# What the libraries of the root link in turn is there as well.
set(CMAKE_EXE_LINKER_FLAGS_INIT
  "-Wl,-rpath-link,${TAPESTRY_AARCH64_ROOT}/usr/lib/aarch64-linux-gnu:${TAPESTRY_AARCH64_ROOT}/lib/aarch64-linux-gnu")
# Where installed programs find OpenBLAS's flavour. CMake would leave out what lies below the project's
# folder, as the root may.
set(CMAKE_INSTALL_RPATH /usr/lib/aarch64-linux-gnu/openblas-openmp)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64-static;-L;${TAPESTRY_AARCH64_ROOT})
set(ENV{PKG_CONFIG_LIBDIR}
  "${TAPESTRY_AARCH64_ROOT}/usr/lib/aarch64-linux-gnu/pkgconfig:${TAPESTRY_AARCH64_ROOT}/usr/share/pkgconfig")
set(ENV{PKG_CONFIG_SYSROOT_DIR} "${TAPESTRY_AARCH64_ROOT}")
# Open MPI's own compiler is a program of the other processor; this one of the root answers in its place.
set(MPI_CXX_COMPILER "${TAPESTRY_AARCH64_ROOT}/mpicxx" CACHE FILEPATH "Says how to compile for MPI")
