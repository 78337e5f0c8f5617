# The installed package: static libraries, headers below include/tapestry, programs, and
# TapestryConfig.cmake with the targets Tapestry::autograd, ::nn, ::optim, ::parallel_core (and one
# for each layer inside autograd and parallel_core, such as Tapestry::autograd_ops).
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(TAPESTRY_CMAKE_DIR "${CMAKE_INSTALL_LIBDIR}/cmake/Tapestry")

get_property(layers GLOBAL PROPERTY TAPESTRY_LAYERS)
set(targets tapestry_autograd tapestry_parallel_core)
foreach(layer IN LISTS layers)
  string(REPLACE "/" "_" name "${layer}")
  get_property(target GLOBAL PROPERTY TAPESTRY_LAYER_TARGET_${name})
  list(APPEND targets "${target}")
  install(DIRECTORY "${PROJECT_SOURCE_DIR}/${layer}/"
    DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/tapestry/${layer}"
    FILES_MATCHING PATTERN "*.h" PATTERN "isa" EXCLUDE)
endforeach()
foreach(target IN LISTS targets)
  string(REGEX REPLACE "^tapestry_" "" name "${target}")
  set_target_properties(${target} PROPERTIES EXPORT_NAME "${name}")
  add_library(Tapestry::${name} ALIAS ${target})
endforeach()
install(TARGETS ${targets} EXPORT TapestryTargets ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}")
install(EXPORT TapestryTargets NAMESPACE Tapestry:: DESTINATION "${TAPESTRY_CMAKE_DIR}")

# Programs that exist for the users of the package, not for the build or its tests.
foreach(program IN ITEMS pretrain_gpt generate preprocess_data golden_to_yaml)
  if(TARGET ${program})
    install(TARGETS ${program} RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
  endif()
endforeach()

install(PROGRAMS "${PROJECT_SOURCE_DIR}/examples/gpt/pretrain_gpt.sh"
  DESTINATION "${CMAKE_INSTALL_BINDIR}")

configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/TapestryConfig.cmake.in"
  "${PROJECT_BINARY_DIR}/TapestryConfig.cmake" INSTALL_DESTINATION "${TAPESTRY_CMAKE_DIR}")
write_basic_package_version_file("${PROJECT_BINARY_DIR}/TapestryConfigVersion.cmake"
  COMPATIBILITY SameMinorVersion)
install(FILES
  "${PROJECT_BINARY_DIR}/TapestryConfig.cmake"
  "${PROJECT_BINARY_DIR}/TapestryConfigVersion.cmake"
  "${PROJECT_SOURCE_DIR}/cmake/TapestryBlas.cmake"
  DESTINATION "${TAPESTRY_CMAKE_DIR}")
