# Language level, warnings and sanitizers, the same for every target.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
# Installed programs find OpenBLAS where the build found it.
set(CMAKE_INSTALL_RPATH_USE_LINK_PATH ON)
if(PROJECT_IS_TOP_LEVEL AND NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()

find_program(TAPESTRY_CCACHE ccache)
if(TAPESTRY_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER "${TAPESTRY_CCACHE}")
endif()

add_library(tapestry_options INTERFACE)
target_compile_options(tapestry_options INTERFACE
  -Wall -Wextra -Wpedantic $<$<BOOL:${TAPESTRY_WERROR}>:-Werror> -Wno-missing-field-initializers
  # GCC 12 sees overlapping copies in `"literal" + string` where there are none (GCC bug 105651).
  $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>
  # A fused multiply-add would change ties in data blends; the kernels in isa/ ask for it.
  $<$<NOT:$<BOOL:$<TARGET_PROPERTY:TAPESTRY_FUSE_MULTIPLY_ADD>>>:-ffp-contract=off>)
if(TAPESTRY_SANITIZE)
  # The undefined-behaviour checks make GCC's flow warnings report paths that cannot be taken.
  target_compile_options(tapestry_options INTERFACE
    -fsanitize=${TAPESTRY_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all
    "$<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized;-Wno-stringop-overflow;-Wno-array-bounds>")
  target_link_options(tapestry_options INTERFACE -fsanitize=${TAPESTRY_SANITIZE})
endif()
