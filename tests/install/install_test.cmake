# Test `install_consumer`: installs the build into a scratch prefix, builds the projects beside this
# file against it, and runs them.
#
#   cmake -DBUILD=build-folder -DSCRATCH=folder -DCXX=compiler -DCOMPONENTS=built -DMPI=openmpi
#     -DMPIEXEC=program -P install_test.cmake
cmake_minimum_required(VERSION 3.25)
include("${CMAKE_CURRENT_LIST_DIR}/without_packages.cmake")
include("${CMAKE_CURRENT_LIST_DIR}/consume_ranks.cmake")
include("${CMAKE_CURRENT_LIST_DIR}/../../cmake/TapestryMpi.cmake")

file(REMOVE_RECURSE "${SCRATCH}")
run("${CMAKE_COMMAND}" --install "${BUILD}" --prefix "${SCRATCH}/prefix")
set(said "${text}")
set(package "-DCMAKE_PREFIX_PATH=${SCRATCH}/prefix" "-DCMAKE_CXX_COMPILER=${CXX}"
  -DCMAKE_BUILD_TYPE=Release)

# consume(FOLDER BUILD argument...): builds and runs the project in a folder beside this file.
function(consume folder build)
  run("${CMAKE_COMMAND}" -G Ninja -S "${CMAKE_CURRENT_LIST_DIR}/${folder}" -B "${SCRATCH}/${build}"
    ${package} ${ARGN})
  run("${CMAKE_COMMAND}" --build "${SCRATCH}/${build}")
  run("${CMAKE_COMMAND}" -E chdir "${SCRATCH}/${build}" ./consumer)
  message(STATUS "${text}")
endfunction()

# expect_refused(NAMES MESSAGE argument...): components that cannot be had, and what is said of it.
function(expect_refused names message)
  run("${CMAKE_COMMAND}" -G Ninja -S "${CMAKE_CURRENT_LIST_DIR}/asks" -B "${SCRATCH}/asks" --fresh
    ${package} "-DASK=${names}" ${ARGN})
  string(FIND "${text}" "${message}" at)
  if(at LESS 0)
    message(FATAL_ERROR "expected '${message}', got\n${text}")
  endif()
endfunction()

# autograd asks for nothing that only parallel_core needs, and compiles without it.
consume(autograd build_autograd ${WITHOUT_PACKAGES} -DCMAKE_DISABLE_FIND_PACKAGE_nlohmann_json=ON)
expect_refused(sparse "Tapestry has no component 'sparse'; known are autograd, nn, optim, text, parallel_core, interop, diagnosis."
  )
expect_refused(nn "Tapestry's component 'nn' needs libraries that were not found. Install them: \
apt-get install libeigen3-dev" -DCMAKE_DISABLE_FIND_PACKAGE_Eigen3=ON)
if("parallel_core" IN_LIST COMPONENTS)
  consume(. build)
  consume_ranks("${SCRATCH}/build_ranks" "${SCRATCH}/prefix" "${CXX}" "${MPI}" "${MPIEXEC}")
  tapestry_mpi_package("${MPI}" mpi_package)
  expect_refused("optim,parallel_core" "Tapestry's component 'parallel_core' needs libraries that were \
not found. Install them: apt-get install pkg-config libsentencepiece-dev libpcre2-dev libutf8proc-dev ${mpi_package} libyaml-cpp-dev libspdlog-dev" ${WITHOUT_PACKAGES})
else()
  expect_refused(parallel_core "This Tapestry was built without the component 'parallel_core'")
endif()

# Installed programs start by themselves: all that are built for users, not those of the source alone.
file(GLOB programs "${SCRATCH}/prefix/bin/*")
foreach(program IN LISTS programs)
  run("${program}" --help)
endforeach()
if("parallel_core" IN_LIST COMPONENTS)
  file(GLOB names RELATIVE "${SCRATCH}/prefix/bin" "${SCRATCH}/prefix/bin/*")
  list(SORT names)
  list(JOIN names " " names)
  set(expected "accuracy compare_checkpoints evaluate export finetune_gpt generate \
preprocess_data pretrain_gpt pretrain_gpt.sh pretrain_gpt_diagnosis")
  if(NOT names STREQUAL expected)
    message(FATAL_ERROR "installed are ${names}, expected ${expected}")
  endif()
  if(NOT said MATCHES "export PATH='[^']*/prefix/bin'")
    message(FATAL_ERROR "the installation does not say how a shell finds the programs: ${said}")
  endif()
  # The launcher finds the presets that are installed with it.
  run("${CMAKE_COMMAND}" -E env RANKS=1 "${SCRATCH}/prefix/bin/pretrain_gpt.sh" pretrain_gpt_tiny.yaml --version)
  # The programs alone, also into a folder with an odd name.
  run("${CMAKE_COMMAND}" --install "${BUILD}" --component programs --prefix "${SCRATCH}/it's $HOME")
  file(GLOB folders RELATIVE "${SCRATCH}/it's $HOME" "${SCRATCH}/it's $HOME/*")
  list(SORT folders)
  if(NOT folders STREQUAL "bin;share")
    message(FATAL_ERROR "the component programs installs ${folders}")
  endif()
  run("${SCRATCH}/it's $HOME/bin/finetune_gpt" --help)
endif()

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
