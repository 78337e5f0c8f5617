# tapestry_layer(FOLDER USES layer... LIBS library...)
#
# Makes the folder a static library of every .cpp in it (sub-folders included) that links exactly
# the layers it USES. The pair is recorded for the test `layers`, which checks each #include.
function(tapestry_layer folder)
  cmake_parse_arguments(ARG "" "" "USES;LIBS;PRIVATE_LIBS" ${ARGN})
  string(REPLACE "/" "_" name "${folder}")
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/${folder}/*.cpp")
  list(FILTER sources EXCLUDE REGEX "/kernels/isa/")  # compiled once per level, see autograd
  if(sources)
    add_library(tapestry_${name} STATIC ${sources})
    set(scope PUBLIC)
    target_link_libraries(tapestry_${name} PRIVATE $<BUILD_INTERFACE:tapestry_options> ${ARG_PRIVATE_LIBS})
  else()
    add_library(tapestry_${name} INTERFACE)
    set(scope INTERFACE)
  endif()
  target_include_directories(tapestry_${name} ${scope}
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}> $<INSTALL_INTERFACE:include/tapestry>)
  target_compile_features(tapestry_${name} ${scope} cxx_std_20)
  foreach(use IN LISTS ARG_USES)
    string(REPLACE "/" "_" use_name "${use}")
    target_link_libraries(tapestry_${name} ${scope} tapestry_${use_name})
  endforeach()
  target_link_libraries(tapestry_${name} ${scope} ${ARG_LIBS})
  set_property(GLOBAL APPEND PROPERTY TAPESTRY_LAYERS "${folder}")
  set_property(GLOBAL PROPERTY TAPESTRY_LAYER_USES_${name} "${ARG_USES}")
endfunction()
