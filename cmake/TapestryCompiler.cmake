# Language level, warnings and sanitizers, the same for every target.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
# Programs are compiled as libraries are, so that both can read the same precompiled headers.
set(CMAKE_CXX_COMPILE_OPTIONS_PIE "${CMAKE_CXX_COMPILE_OPTIONS_PIC}")
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
# Most of what a source costs is the headers that its neighbours read as well.
set(CMAKE_UNITY_BUILD ${TAPESTRY_UNITY})
set(CMAKE_UNITY_BUILD_BATCH_SIZE 32)
# Installed programs find OpenBLAS where the build found it.
set(CMAKE_INSTALL_RPATH_USE_LINK_PATH ON)
if(PROJECT_IS_TOP_LEVEL AND NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()

find_program(TAPESTRY_CCACHE ccache)
if(TAPESTRY_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # ccache takes objects that use a precompiled header only if it may trust the header's own checksum.
  set(CMAKE_CXX_COMPILER_LAUNCHER "${CMAKE_COMMAND}" -E env
    CCACHE_SLOPPINESS=pch_defines,time_macros "${TAPESTRY_CCACHE}")
endif()

add_library(tapestry_options INTERFACE)
target_compile_options(tapestry_options INTERFACE
  -Wall -Wextra -Wpedantic $<$<BOOL:${TAPESTRY_WERROR}>:-Werror> -Wno-missing-field-initializers
  # GCC 12 sees overlapping copies in `"literal" + string` where there are none (GCC bug 105651).
  $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>
  # A twelfth of the time that sources of many templates take goes into collecting garbage that would
  # fit: the compiler begins at 128 MiB.
  $<$<CXX_COMPILER_ID:GNU>:--param=ggc-min-heapsize=786432>
  # ccache sees which precompiled header an object was made with.
  $<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>
  # The places of ops have the names of sources as they are in the project, wherever it was built.
  -fmacro-prefix-map=${PROJECT_SOURCE_DIR}/=
  # A fused multiply-add would change ties in data blends; the kernels in isa/ ask for it.
  $<$<NOT:$<BOOL:$<TARGET_PROPERTY:TAPESTRY_FUSE_MULTIPLY_ADD>>>:-ffp-contract=off>)
if(TAPESTRY_SANITIZE)
  # The undefined-behaviour checks make GCC's flow warnings report paths that cannot be taken.
  target_compile_options(tapestry_options INTERFACE
    -fsanitize=${TAPESTRY_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all
    "$<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized;-Wno-stringop-overflow;-Wno-array-bounds>")
  target_link_options(tapestry_options INTERFACE -fsanitize=${TAPESTRY_SANITIZE})
endif()

# tapestry_precompile(NAME HEADER...): an object library that compiles the headers once, as
# targets with the usual options read them; tapestry_use_precompiled(TARGET NAME) gives them to a
# target. Only headers of libraries: our own are included where they are used. The sanitizer presets
# switch this off (CMAKE_DISABLE_PRECOMPILE_HEADERS), so that a missing #include does not hide.
function(tapestry_precompile name)
  set(source "${PROJECT_BINARY_DIR}/${name}.cpp")
  file(CONFIGURE OUTPUT "${source}" CONTENT "// Compiles the headers that targets share.\n")
  add_library(${name} OBJECT "${source}")
  target_link_libraries(${name} PRIVATE tapestry_options)
  if(TAPESTRY_OPENMP)
    target_link_libraries(${name} PRIVATE OpenMP::OpenMP_CXX)
  endif()
  target_precompile_headers(${name} PRIVATE ${ARGN})
endfunction()
function(tapestry_use_precompiled target name)
  target_precompile_headers(${target} REUSE_FROM ${name})
endfunction()

# A target whose time is spent in what it calls: a release compiles it with -O1.
function(tapestry_steers target)
  target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O1>)
endfunction()
