# Third-party libraries, all from Debian 12. Each becomes one imported target, which a project that
# adds this one as a subdirectory sees too.
set(CMAKE_FIND_PACKAGE_TARGETS_GLOBAL ON)
set(missing "")
foreach(component IN LISTS TAPESTRY_BUILT_COMPONENTS)
  tapestry_find_component_dependencies(${component} ${TAPESTRY_OPENMP} missing_here)
  list(APPEND missing ${missing_here})
endforeach()
# What only the build needs: headers that are used inside, and libraries of programs.
if(NOT TAPESTRY_OPENBLAS_INCLUDE)
  list(APPEND missing libopenblas-openmp-dev)
endif()
tapestry_find_dependency(missing nlohmann-json3-dev nlohmann_json)
if(TAPESTRY_BUILD_EXAMPLES AND "parallel_core" IN_LIST TAPESTRY_BUILT_COMPONENTS)
  tapestry_find_dependency(missing libboost-program-options-dev Boost COMPONENTS program_options)
endif()
if(missing)
  list(REMOVE_DUPLICATES missing)
  list(JOIN missing " " missing)
  message(FATAL_ERROR "Tapestry, components ${TAPESTRY_BUILT_COMPONENTS}: libraries were not found. "
    "Install them: apt-get install ${missing}")
endif()
