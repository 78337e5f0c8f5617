# Included by scripts that have installed a package, with their arguments.

# run(COMMAND...): fails if it does; what it has printed is in `text`.
function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE result OUTPUT_VARIABLE text ERROR_VARIABLE text)
  if(NOT result EQUAL 0)
    list(JOIN ARGN " " command)
    message(FATAL_ERROR "${command}\n${text}")
  endif()
  set(text "${text}" PARENT_SCOPE)
endfunction()

# consume_ranks(BUILD PREFIX CXX MPI MPIEXEC): builds ranks/ against the package in PREFIX, which is to
# find that MPI, whatever others there are, and no other, and starts two ranks of it.
function(consume_ranks build prefix cxx mpi mpiexec)
  set(name_openmpi "Open MPI")
  set(name_mpich "MPICH")
  set(library_openmpi "libmpi\\.so|libmpi_cxx|libopen-rte")
  set(library_mpich "libmpich")
  set(other_openmpi mpich)
  set(other_mpich openmpi)
  run("${CMAKE_COMMAND}" -G Ninja -S "${CMAKE_CURRENT_FUNCTION_LIST_DIR}/ranks" -B "${build}"
    "-DCMAKE_PREFIX_PATH=${prefix}" "-DCMAKE_CXX_COMPILER=${cxx}" -DCMAKE_BUILD_TYPE=Release)
  message(STATUS "${text}")
  run("${CMAKE_COMMAND}" --build "${build}")
  run(ldd "${build}/ranks")
  if(NOT text MATCHES "${library_${mpi}}" OR text MATCHES "${library_${other_${mpi}}}")
    message(FATAL_ERROR "expected the library of ${name_${mpi}} and no other, got\n${text}")
  endif()
  run("${mpiexec}" -n 2 "${build}/ranks")
  if(NOT text MATCHES "sum 3 of 2 ranks by ${name_${mpi}}")
    message(FATAL_ERROR "two ranks under ${mpiexec} are to have the sum 3 by ${name_${mpi}}, got\n${text}")
  endif()
  message(STATUS "${text}")
endfunction()
