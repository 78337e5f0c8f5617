# Test `install_consumer.mpich`: a package of MPICH, and a program of several ranks outside the tree that
# uses it, on a machine that has Open MPI as well. It is this build's package, with the objects that call
# MPI from those that are compiled for MPICH beside it, so that nothing is compiled but the program.
#
#   cmake -DBUILD=build-folder -DSCRATCH=folder -DCXX=compiler -DAR=ar -DOBJECTS=a,b -DMPIEXEC=program
#     -P mpich_package_test.cmake
cmake_minimum_required(VERSION 3.25)
include("${CMAKE_CURRENT_LIST_DIR}/consume_ranks.cmake")

file(REMOVE_RECURSE "${SCRATCH}")
run("${CMAKE_COMMAND}" --install "${BUILD}" --component development --prefix "${SCRATCH}/prefix")
# Members of the same names are replaced; others would come beside them.
file(GLOB_RECURSE library "${SCRATCH}/prefix/libtapestry_parallel_core_comm.a")
run("${AR}" t "${library}")
set(members "${text}")
string(REPLACE "," ";" OBJECTS "${OBJECTS}")
run("${AR}" r "${library}" ${OBJECTS})
run("${AR}" t "${library}")
if(NOT text STREQUAL members)
  message(FATAL_ERROR "the objects for MPICH are to replace those of the build's MPI among\n${members}")
endif()
# What a build for MPICH writes there.
file(GLOB_RECURSE config "${SCRATCH}/prefix/TapestryConfig.cmake")
file(READ "${config}" text)
string(REPLACE "set(TAPESTRY_MPI \"openmpi\")" "set(TAPESTRY_MPI \"mpich\")" changed "${text}")
if(changed STREQUAL text)
  message(FATAL_ERROR "${config} does not say that the package is one of Open MPI")
endif()
file(WRITE "${config}" "${changed}")
consume_ranks("${SCRATCH}/build" "${SCRATCH}/prefix" "${CXX}" mpich "${MPIEXEC}")
