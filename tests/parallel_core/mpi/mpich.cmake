# The comm layer's two sources that call MPI, compiled again for MPICH: with them and the objects of
# everything else the tests of ranks run under both MPIs in one build. Where the build's own MPI is
# MPICH, or there is no second one, there is nothing to do.

# tapestry_mpich_program(NAME OF target LIBS target...): the program of a target, its own objects and
# libraries, on MPICH. The archive's objects for the other MPI are not needed then, nor is its library,
# which --as-needed therefore leaves out: the test mpich.links sees to that.
function(tapestry_mpich_program name)
  cmake_parse_arguments(ARG "" "OF" "LIBS" ${ARGN})
  add_executable(${name} $<TARGET_OBJECTS:${ARG_OF}> $<TARGET_OBJECTS:tapestry_comm_mpich>)
  target_link_options(${name} PRIVATE -Wl,--as-needed)
  target_link_libraries(${name} PRIVATE tapestry_options tapestry_mpich_beside ${ARG_LIBS})
  set_target_properties(${name} PROPERTIES LINKER_LANGUAGE CXX
    RUNTIME_OUTPUT_DIRECTORY "${CMAKE_CURRENT_BINARY_DIR}/mpich")
endfunction()

function(tapestry_mpich_tests)
  tapestry_find_mpich_beside(tapestry_mpich_mpiexec)
  if(NOT tapestry_mpich_mpiexec)
    message(STATUS "Tests under MPICH are left out: apt-get install mpich libmpich-dev")
    return()
  endif()
  tapestry_hydra_script(mpirun)
  add_library(tapestry_comm_mpich OBJECT "${PROJECT_SOURCE_DIR}/parallel_core/comm/distributed.cpp"
    "${PROJECT_SOURCE_DIR}/parallel_core/comm/mpi_transport.cpp")
  target_link_libraries(tapestry_comm_mpich PRIVATE tapestry_options tapestry_mpich_beside
    tapestry_autograd_ops)
  tapestry_use_precompiled(tapestry_comm_mpich tapestry_std_headers)
  tapestry_steers(tapestry_comm_mpich)
  # Objects of the names that they have in the library, where they take the places of those.
  set_target_properties(tapestry_comm_mpich PROPERTIES UNITY_BUILD OFF)

  tapestry_mpich_program(test.parallel_core.mpich OF test.parallel_core.mpi
    LIBS tapestry_parallel_core GTest::gmock)
  foreach(ranks 2 4)
    add_test(NAME parallel_core.mpich.${ranks} WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}"
      COMMAND ${mpirun} -n ${ranks} $<TARGET_FILE:test.parallel_core.mpich>)
  endforeach()
  tapestry_mpich_program(test.misbehave.mpich OF test.misbehave LIBS tapestry_parallel_core)
  add_test(NAME parallel_core.mpich.failures COMMAND
    bash "${CMAKE_CURRENT_SOURCE_DIR}/parallel_core/mpi/failures_test.sh" "${mpirun}"
    $<TARGET_FILE:test.misbehave.mpich>)
  set(tests parallel_core.mpich.2 parallel_core.mpich.4 parallel_core.mpich.failures)
  if(TAPESTRY_INSTALL)
    add_test(NAME install_consumer.mpich COMMAND ${CMAKE_COMMAND} "-DBUILD=${PROJECT_BINARY_DIR}"
      "-DSCRATCH=${CMAKE_CURRENT_BINARY_DIR}/install_consumer.mpich" "-DCXX=${CMAKE_CXX_COMPILER}"
      "-DAR=${CMAKE_AR}" "-DOBJECTS=$<JOIN:$<TARGET_OBJECTS:tapestry_comm_mpich>,$<COMMA>>" "-DMPIEXEC=${mpirun}"
      -P "${CMAKE_CURRENT_SOURCE_DIR}/install/mpich_package_test.cmake")
    list(APPEND tests install_consumer.mpich)
  endif()
  if(TARGET pretrain_gpt)
    tapestry_mpich_program(pretrain_gpt.mpich OF pretrain_gpt LIBS tapestry_command_line
      tapestry_pretrain_command tapestry_diagnosis_autopsy)
    set_target_properties(pretrain_gpt.mpich PROPERTIES OUTPUT_NAME pretrain_gpt)
    add_test(NAME examples.gpt.mpich COMMAND
      bash "${CMAKE_CURRENT_SOURCE_DIR}/examples/gpt/mpich_test.sh" "${MPIEXEC_EXECUTABLE}" "${mpirun}"
      $<TARGET_FILE:pretrain_gpt> $<TARGET_FILE:pretrain_gpt.mpich>
      "${PROJECT_SOURCE_DIR}/examples/gpt/pretrain_gpt.sh")
    list(APPEND tests examples.gpt.mpich)
    set(on_mpich "${mpirun}" $<TARGET_FILE:pretrain_gpt.mpich>)
  endif()
  set(tapestry_on_mpich ${on_mpich} PARENT_SCOPE)
  foreach(test IN LISTS tests)
    tapestry_mpi_properties(${test})
  endforeach()
endfunction()

if(TAPESTRY_MPI STREQUAL "openmpi")
  set(tapestry_on_mpich "")  # how ranks on MPICH are started, and what runs there
  tapestry_mpich_tests()
  if(TARGET pretrain_gpt)
    add_test(NAME parallel_core.hosts COMMAND
      bash "${CMAKE_CURRENT_SOURCE_DIR}/parallel_core/hosts/hosts_test.sh" "${MPIEXEC_EXECUTABLE}"
      $<TARGET_FILE:pretrain_gpt> $<TARGET_FILE:test.misbehave>
      "${PROJECT_SOURCE_DIR}/examples/gpt/pretrain_gpt_tiny.yaml"
      ${tapestry_on_mpich})
    set_tests_properties(parallel_core.hosts PROPERTIES LABELS cluster TIMEOUT 900 SKIP_RETURN_CODE 77)
  endif()
endif()
