# Test `install_consumer`: installs the build into a scratch prefix, builds the project beside this
# file against it, and runs it.
#
#   cmake -DBUILD=build-folder -DSCRATCH=folder -DCXX=compiler -P install_test.cmake
cmake_minimum_required(VERSION 3.25)

function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE result OUTPUT_VARIABLE text ERROR_VARIABLE text)
  if(NOT result EQUAL 0)
    list(JOIN ARGN " " command)
    message(FATAL_ERROR "${command}\n${text}")
  endif()
  set(text "${text}" PARENT_SCOPE)
endfunction()

file(REMOVE_RECURSE "${SCRATCH}")
run("${CMAKE_COMMAND}" --install "${BUILD}" --prefix "${SCRATCH}/prefix")
run("${CMAKE_COMMAND}" -G Ninja -S "${CMAKE_CURRENT_LIST_DIR}" -B "${SCRATCH}/build"
  "-DCMAKE_PREFIX_PATH=${SCRATCH}/prefix" "-DCMAKE_CXX_COMPILER=${CXX}" -DCMAKE_BUILD_TYPE=Release)
run("${CMAKE_COMMAND}" --build "${SCRATCH}/build")
run("${SCRATCH}/build/consumer")
message(STATUS "${text}")

# Installed programs start by themselves.
file(GLOB programs "${SCRATCH}/prefix/bin/*")
foreach(program IN LISTS programs)
  run("${program}" --help)
endforeach()

# The package must not lead back into the source or build tree.
get_filename_component(source "${CMAKE_CURRENT_LIST_DIR}/../.." ABSOLUTE)
file(GLOB_RECURSE files "${SCRATCH}/prefix/*.cmake" "${SCRATCH}/prefix/*.h")
foreach(file IN LISTS files)
  file(STRINGS "${file}" lines REGEX "include|INTERFACE|LOCATION|PATH")
  foreach(line IN LISTS lines)
    string(FIND "${line}" "${source}/" at)
    string(FIND "${line}" "${SCRATCH}" in_scratch)
    if(at GREATER_EQUAL 0 AND in_scratch LESS 0)
      message(FATAL_ERROR "${file} refers to the source tree: ${line}")
    endif()
  endforeach()
endforeach()
