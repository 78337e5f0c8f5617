# TAPESTRY_CPU_LEVELS: for which levels (autograd/kernels/machine/cpu.h) the loops of the kernels are
# compiled. `all`, which runs at full speed anywhere; `native`, that of this machine alone; or a list.
# The level portable is always there, so that the programs start on any processor.
set(TAPESTRY_CPU_LEVELS all CACHE STRING
  "CPU levels of the kernels: all, native (that of this machine), or a list of avx2, avx512, avx512_bf16")

# Sets `out` to the levels that are compiled, lowest first.
function(tapestry_cpu_levels out)
  set(${out} portable PARENT_SCOPE)
  if(NOT CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$")
    return()
  endif()
  set(known avx2 avx512 avx512_bf16)
  set(wanted "${TAPESTRY_CPU_LEVELS}")
  if(wanted STREQUAL "all")
    set(wanted ${known})
  elseif(wanted STREQUAL "native")
    tapestry_detect_cpu_level(wanted)
  endif()
  list(REMOVE_ITEM wanted portable)
  if("avx512_bf16" IN_LIST wanted)
    list(APPEND wanted avx512)  # of which it has all that is no product of pairs
  endif()
  foreach(level IN LISTS wanted)
    if(NOT level IN_LIST known)
      message(FATAL_ERROR "TAPESTRY_CPU_LEVELS has '${level}'; expected all, native, or a list of "
        "portable, avx2, avx512 and avx512_bf16")
    endif()
  endforeach()
  set(levels portable)
  foreach(level IN LISTS known)
    if(level IN_LIST wanted)
      list(APPEND levels ${level})
    endif()
  endforeach()
  set(${out} ${levels} PARENT_SCOPE)
endfunction()

# The level of this machine: what cpu.cpp itself says. Of AMX, that below it, whose loops serve it.
function(tapestry_detect_cpu_level out)
  if(NOT DEFINED TAPESTRY_NATIVE_LEVEL)
    set(source "${PROJECT_BINARY_DIR}/native_level.cpp")
    file(WRITE "${source}" "#include <cstdio>
#include \"autograd/kernels/machine/cpu.cpp\"
int main() { std::puts(name_of(tapestry::detected_cpu_level()).data()); }
")
    try_run(code compiled "${PROJECT_BINARY_DIR}/native_level" "${source}"
      CMAKE_FLAGS "-DINCLUDE_DIRECTORIES=${PROJECT_SOURCE_DIR}" CXX_STANDARD 20
      COMPILE_OUTPUT_VARIABLE compile_output RUN_OUTPUT_VARIABLE level)
    if(NOT compiled OR NOT code EQUAL 0)
      message(FATAL_ERROR "The CPU level of this machine could not be found; set TAPESTRY_CPU_LEVELS "
        "to all. ${compile_output}")
    endif()
    string(STRIP "${level}" level)
    set(TAPESTRY_NATIVE_LEVEL "${level}" CACHE INTERNAL "CPU level of the machine that configured")
  endif()
  string(REPLACE "amx" "avx512_bf16" level "${TAPESTRY_NATIVE_LEVEL}")
  set(${out} ${level} PARENT_SCOPE)
endfunction()
