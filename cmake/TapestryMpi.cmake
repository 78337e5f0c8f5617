# The MPI library by which ranks talk, chosen by TAPESTRY_MPI (openmpi or mpich). Used by the build and
# by the installed package, whose libraries know only the MPI that they were built with.

# The Debian package of its headers.
function(tapestry_mpi_package mpi out)
  set(packages_openmpi libopenmpi-dev)
  set(packages_mpich libmpich-dev)
  set(${out} ${packages_${mpi}} PARENT_SCOPE)
endfunction()

# Sets `out` to the MPI whose headers these folders hold: openmpi, mpich, or "" for another one.
# Descendants of MPICH (Intel MPI, MVAPICH, Cray MPICH) share its headers' marks and are called mpich.
function(tapestry_mpi_of_headers folders out)
  set(${out} "" PARENT_SCOPE)
  foreach(folder IN LISTS folders)
    if(EXISTS "${folder}/mpi.h")
      file(STRINGS "${folder}/mpi.h" marks REGEX "define +(OPEN_MPI|MPICH_VERSION|MPICH_NAME) ")
      file(STRINGS "${folder}/mpi.h" open_mpi REGEX "define +(OPEN_MPI|OMPI_MAJOR_VERSION) ")
      if(open_mpi)
        set(${out} openmpi PARENT_SCOPE)
      elseif(marks)
        set(${out} mpich PARENT_SCOPE)
      endif()
      return()
    endif()
  endforeach()
endfunction()

# Finds that MPI as MPI::MPI_CXX, and MPIEXEC_EXECUTABLE, which starts its ranks; its Debian package
# joins the list `missing` if it is not there. Where two are installed, their compilers carry a suffix
# (Debian: mpicxx.mpich); otherwise the compiler in the PATH, or MPI_CXX_COMPILER, says which it is. A
# macro: what find_package sets is the caller's.
macro(tapestry_find_mpi mpi missing)
  set(tapestry_mpi_given "${MPI_CXX_COMPILER}")
  if(NOT MPI_CXX_COMPILER)
    find_program(TAPESTRY_MPI_COMPILER_${mpi} NAMES mpicxx.${mpi})
    mark_as_advanced(TAPESTRY_MPI_COMPILER_${mpi})
    if(TAPESTRY_MPI_COMPILER_${mpi})
      set(MPI_CXX_COMPILER "${TAPESTRY_MPI_COMPILER_${mpi}}" CACHE FILEPATH "Compiler of the MPI library")
    endif()
  endif()
  if(NOT MPIEXEC_EXECUTABLE)
    find_program(TAPESTRY_MPIEXEC_${mpi} NAMES mpiexec.${mpi} mpirun.${mpi})
    mark_as_advanced(TAPESTRY_MPIEXEC_${mpi})
    if(TAPESTRY_MPIEXEC_${mpi})
      set(MPIEXEC_EXECUTABLE "${TAPESTRY_MPIEXEC_${mpi}}" CACHE FILEPATH "What starts the ranks")
    endif()
  endif()
  find_package(MPI QUIET COMPONENTS CXX)
  set(tapestry_mpi_found "")
  if(MPI_CXX_FOUND)
    tapestry_mpi_of_headers("${MPI_CXX_INCLUDE_DIRS}" tapestry_mpi_found)
  endif()
  if(NOT tapestry_mpi_found STREQUAL "${mpi}")
    if(tapestry_mpi_found)
      message(STATUS "Tapestry is to use the MPI '${mpi}', but ${MPI_CXX_COMPILER} is that of "
        "'${tapestry_mpi_found}'. Name another compiler (-DMPI_CXX_COMPILER=...), in a build folder of its own")
    endif()
    tapestry_mpi_package(${mpi} tapestry_mpi_package_name)
    list(APPEND ${missing} ${tapestry_mpi_package_name})
    if(NOT tapestry_mpi_given)  # once it is installed it is to be found
      unset(MPI_CXX_COMPILER CACHE)
      unset(MPIEXEC_EXECUTABLE CACHE)
    endif()
  endif()
endmacro()

# Debian's MPICH beside the MPI of the build, as the target tapestry_mpich_beside, with `mpiexec` set to
# what starts its ranks; "" where it is not there. For tests that run the same sources under both.
function(tapestry_find_mpich_beside mpiexec)
  set(${mpiexec} "" PARENT_SCOPE)
  find_program(TAPESTRY_MPIEXEC_mpich NAMES mpiexec.mpich mpirun.mpich)
  find_path(TAPESTRY_MPICH_INCLUDE mpi.h PATH_SUFFIXES mpich NO_CMAKE_PATH
    PATHS "/usr/include/${CMAKE_LIBRARY_ARCHITECTURE}" NO_DEFAULT_PATH)
  find_library(TAPESTRY_MPICH_LIBRARY mpich)
  mark_as_advanced(TAPESTRY_MPIEXEC_mpich TAPESTRY_MPICH_INCLUDE TAPESTRY_MPICH_LIBRARY)
  tapestry_mpi_of_headers("${TAPESTRY_MPICH_INCLUDE}" kind)
  if(NOT kind STREQUAL "mpich" OR NOT TAPESTRY_MPICH_LIBRARY OR NOT TAPESTRY_MPIEXEC_mpich)
    return()
  endif()
  add_library(tapestry_mpich_beside INTERFACE)
  target_include_directories(tapestry_mpich_beside SYSTEM INTERFACE "${TAPESTRY_MPICH_INCLUDE}")
  target_compile_definitions(tapestry_mpich_beside INTERFACE MPICH_SKIP_MPICXX)  # C++ classes of MPI-2
  target_link_libraries(tapestry_mpich_beside INTERFACE "${TAPESTRY_MPICH_LIBRARY}")
  set(${mpiexec} "${TAPESTRY_MPIEXEC_mpich}" PARENT_SCOPE)
endfunction()
