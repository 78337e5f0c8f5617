# The installed package: static libraries, headers below include/tapestry, programs, and
# TapestryConfig.cmake with the components autograd, nn, optim, parallel_core, each with its target
# Tapestry::NAME (and one for each layer inside autograd and parallel_core, such as
# Tapestry::autograd_ops).
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(TAPESTRY_CMAKE_DIR "${CMAKE_INSTALL_LIBDIR}/cmake/Tapestry")

foreach(component IN LISTS TAPESTRY_BUILT_COMPONENTS)
  tapestry_component_targets(${component} targets)
  install(TARGETS ${targets} EXPORT TapestryTargets-${component}
    ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT development)
  set(folders ${component})
  get_property(layers GLOBAL PROPERTY TAPESTRY_LAYERS_OF_${component})
  list(FILTER layers EXCLUDE REGEX "^${component}(/|$)")  # those that come with it from elsewhere
  foreach(folder IN LISTS folders layers)
    install(DIRECTORY "${PROJECT_SOURCE_DIR}/${folder}/"
      DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/tapestry/${folder}" COMPONENT development
      FILES_MATCHING PATTERN "*.h" PATTERN "isa" EXCLUDE)
  endforeach()
  install(EXPORT TapestryTargets-${component} NAMESPACE Tapestry::
    DESTINATION "${TAPESTRY_CMAKE_DIR}" COMPONENT development)
endforeach()
install(FILES "${PROJECT_SOURCE_DIR}/tapestry.h"
  DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/tapestry" COMPONENT development)

# The programs, with the script that starts ranks and the presets that it looks for. Alone, where only
# the target `programs` is built: cmake --install BUILD --component programs
get_property(programs GLOBAL PROPERTY TAPESTRY_PROGRAMS)
if(programs)
  install(TARGETS ${programs} RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}" COMPONENT programs)
  install(PROGRAMS "${PROJECT_SOURCE_DIR}/examples/gpt/pretrain_gpt.sh"
    DESTINATION "${CMAKE_INSTALL_BINDIR}" COMPONENT programs)
  file(GLOB presets "${PROJECT_SOURCE_DIR}/examples/gpt/pretrain_gpt_*.yaml")
  # What pretrain_gpt.sh --restarts and batch scripts use; it is no program for the PATH.
  install(PROGRAMS "${PROJECT_SOURCE_DIR}/examples/gpt/pretrain_gpt_restarts.sh"
    DESTINATION "${CMAKE_INSTALL_DATADIR}/tapestry" COMPONENT programs)
  # Jobs for Slurm, submitted as they stand: sbatch PREFIX/share/tapestry/slurm/pretrain.sbatch
  install(DIRECTORY "${PROJECT_SOURCE_DIR}/examples/slurm/" DESTINATION "${CMAKE_INSTALL_DATADIR}/tapestry/slurm"
    USE_SOURCE_PERMISSIONS COMPONENT programs)
  install(FILES ${presets} DESTINATION "${CMAKE_INSTALL_DATADIR}/tapestry" COMPONENT programs)
  install(CODE "set(tapestry_programs \"\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_BINDIR}\")" COMPONENT programs)
  install(SCRIPT "${CMAKE_CURRENT_LIST_DIR}/TapestryPathLine.cmake" COMPONENT programs)
endif()

configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/TapestryConfig.cmake.in"
  "${PROJECT_BINARY_DIR}/TapestryConfig.cmake" INSTALL_DESTINATION "${TAPESTRY_CMAKE_DIR}")
write_basic_package_version_file("${PROJECT_BINARY_DIR}/TapestryConfigVersion.cmake"
  COMPATIBILITY SameMinorVersion)
install(FILES
  "${PROJECT_BINARY_DIR}/TapestryConfig.cmake"
  "${PROJECT_BINARY_DIR}/TapestryConfigVersion.cmake"
  "${PROJECT_SOURCE_DIR}/cmake/TapestryBlas.cmake"
  "${PROJECT_SOURCE_DIR}/cmake/TapestryComponents.cmake"
  "${PROJECT_SOURCE_DIR}/cmake/TapestryMpi.cmake"
  DESTINATION "${TAPESTRY_CMAKE_DIR}" COMPONENT development)
