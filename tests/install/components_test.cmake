# Test `build_components`: what TAPESTRY_COMPONENTS leaves out is not looked for, and the sources can
# be part of another project's build.
#
#   cmake -DSOURCE_DIR=tree -DSCRATCH=folder -DCXX=compiler -P components_test.cmake
cmake_minimum_required(VERSION 3.25)
include("${CMAKE_CURRENT_LIST_DIR}/without_packages.cmake")

function(configure out_result out_text folder)
  execute_process(COMMAND "${CMAKE_COMMAND}" -G Ninja -B "${SCRATCH}/${folder}"
    "-DCMAKE_CXX_COMPILER=${CXX}" ${ARGN}
    RESULT_VARIABLE result OUTPUT_VARIABLE text ERROR_VARIABLE text)
  string(REGEX REPLACE "[ \n]+" " " text "${text}")  # CMake wraps messages
  set(${out_result} "${result}" PARENT_SCOPE)
  set(${out_text} "${text}" PARENT_SCOPE)
endfunction()

function(check condition_text)
  if(NOT (${ARGN}))
    message(FATAL_ERROR "${condition_text}\n${text}")
  endif()
endfunction()

file(REMOVE_RECURSE "${SCRATCH}")
# By itself: no test or program of what is left out.
configure(result text optim -S "${SOURCE_DIR}" -DTAPESTRY_COMPONENTS=optim ${WITHOUT_PACKAGES})
check("optim alone should configure without MPI" result EQUAL 0)
execute_process(COMMAND ninja -C "${SCRATCH}/optim" -t targets all OUTPUT_VARIABLE targets)
check("optim's tests belong to it" targets MATCHES "test\\.optim")
check("parallel_core was left out" NOT targets MATCHES "parallel_core")
file(READ "${SCRATCH}/optim/compile_commands.json" commands)
check("warnings should be errors here" commands MATCHES "-Werror")

# What is missing is named with its package.
configure(result text all -S "${SOURCE_DIR}" ${WITHOUT_PACKAGES})
check("parallel_core needs MPI" NOT result EQUAL 0)
check("the packages should be named" text MATCHES
  "apt-get install pkg-config libsentencepiece-dev libpcre2-dev libutf8proc-dev libopenmpi-dev libyaml-cpp-dev libspdlog-dev")
configure(result text mpich -S "${SOURCE_DIR}" -DTAPESTRY_MPI=mpich ${WITHOUT_PACKAGES})
check("the package of the MPI that was chosen should be named" text MATCHES "apt-get install .*libmpich-dev")
configure(result text other_mpi -S "${SOURCE_DIR}" -DTAPESTRY_MPI=lam)
check("there is no MPI 'lam'" NOT result EQUAL 0)
check("known ones should be named" text MATCHES "TAPESTRY_MPI is 'lam'. known are openmpi, mpich")
configure(result text unknown -S "${SOURCE_DIR}" -DTAPESTRY_COMPONENTS=optimizer)
check("there is no component 'optimizer'" NOT result EQUAL 0)
check("known components should be named" text MATCHES
  "no component 'optimizer'. known are autograd, nn, optim, text, parallel_core, interop, diagnosis")

# Below another project: the libraries alone, and that project's idea of warnings.
configure(result text super -S "${CMAKE_CURRENT_LIST_DIR}/super" "-DTAPESTRY=${SOURCE_DIR}"
  -DTAPESTRY_COMPONENTS=optim ${WITHOUT_PACKAGES})
check("should configure below another project" result EQUAL 0)
file(READ "${SCRATCH}/super/compile_commands.json" commands)
check("warnings should not be errors there" NOT commands MATCHES "-Werror")
