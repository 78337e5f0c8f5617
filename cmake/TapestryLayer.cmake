# tapestry_layer(FOLDER [FLAT] [STEERS [LOOPS source...]] [TARGET name] [COMPONENT name] [ROOMS room...]
#   USES layer... LIBS library...)
#
# Makes the folder a static library of every .cpp in it (sub-folders included, unless FLAT) that links
# exactly the layers it USES. ROOMS: its sub-folders, lowest first, with `.` for the folder itself; a
# file includes what is in its own room and in those before it. The library is called tapestry_ and the folder with underscores, or
# TARGET. The pair is recorded for the test `layers`, which checks each #include. STEERS: the folder has
# no loops over elements of its own, only calls of layers that have; it is compiled with -O1, which
# takes half the time. LOOPS: but for these sources. COMPONENT: that it is built and installed with, if
# that is not the first part of its name.
function(tapestry_layer folder)
  cmake_parse_arguments(ARG "FLAT;STEERS" "TARGET;COMPONENT" "LOOPS;ROOMS;USES;LIBS;PRIVATE_LIBS" ${ARGN})
  if(ARG_LOOPS AND NOT ARG_STEERS)
    message(FATAL_ERROR "tapestry_layer(${folder}): LOOPS without STEERS, where all sources have -O3")
  endif()
  string(REPLACE "/" "_" folder_name "${folder}")
  set(name "${folder_name}")
  if(ARG_TARGET)
    set(name "${ARG_TARGET}")
  endif()
  set(glob GLOB_RECURSE)
  if(ARG_FLAT OR ARG_ROOMS)
    set(glob GLOB)
  endif()
  set(patterns "${PROJECT_SOURCE_DIR}/${folder}/*.cpp")
  foreach(room IN LISTS ARG_ROOMS)
    list(APPEND patterns "${PROJECT_SOURCE_DIR}/${folder}/${room}/*.cpp")
  endforeach()
  list(FILTER patterns EXCLUDE REGEX "/\\./")
  file(${glob} sources CONFIGURE_DEPENDS ${patterns})
  list(FILTER sources EXCLUDE REGEX "/kernels/isa/")  # compiled once per level, see autograd
  if(sources)
    add_library(tapestry_${name} STATIC ${sources})
    set(scope PUBLIC)
    target_link_libraries(tapestry_${name} PRIVATE $<BUILD_INTERFACE:tapestry_options> ${ARG_PRIVATE_LIBS})
    tapestry_use_precompiled(tapestry_${name} tapestry_std_headers)
    if(ARG_STEERS)
      tapestry_steers(tapestry_${name})
      foreach(source IN LISTS ARG_LOOPS)
        set_source_files_properties("${PROJECT_SOURCE_DIR}/${folder}/${source}"
          TARGET_DIRECTORY tapestry_${name} PROPERTIES
          COMPILE_OPTIONS "$<$<CONFIG:Release>:-O3>" SKIP_UNITY_BUILD_INCLUSION ON)
      endforeach()
    endif()
  else()
    add_library(tapestry_${name} INTERFACE)
    set(scope INTERFACE)
  endif()
  target_include_directories(tapestry_${name} ${scope}
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}> $<INSTALL_INTERFACE:include/tapestry>)
  target_compile_features(tapestry_${name} ${scope} cxx_std_20)
  foreach(use IN LISTS ARG_USES)
    string(REPLACE "/" "_" use_name "${use}")
    get_property(use_target GLOBAL PROPERTY TAPESTRY_LAYER_TARGET_${use_name})
    if(NOT use_target)
      set(use_target "tapestry_${use_name}")  # the library of a whole folder of layers
    endif()
    target_link_libraries(tapestry_${name} ${scope} ${use_target})
  endforeach()
  target_link_libraries(tapestry_${name} ${scope} ${ARG_LIBS})
  set_property(GLOBAL APPEND PROPERTY TAPESTRY_LAYERS "${folder}")
  if(NOT ARG_COMPONENT)
    string(REGEX REPLACE "/.*" "" ARG_COMPONENT "${folder}")
  endif()
  set_property(GLOBAL APPEND PROPERTY TAPESTRY_LAYERS_OF_${ARG_COMPONENT} "${folder}")
  set_property(GLOBAL PROPERTY TAPESTRY_LAYER_USES_${folder_name} "${ARG_USES}")
  set_property(GLOBAL PROPERTY TAPESTRY_LAYER_ROOMS_${folder_name} "${ARG_ROOMS}")
  set_property(GLOBAL PROPERTY TAPESTRY_LAYER_TARGET_${folder_name} "tapestry_${name}")
endfunction()

# tapestry_component(NAME LAYERS layer...): what users link for the component, as a target without
# sources: its layers, and all of the components that it uses. Layers and our own programs link the
# layers that they use instead, so that building them builds nothing else.
function(tapestry_component name)
  cmake_parse_arguments(ARG "" "" "LAYERS" ${ARGN})
  add_library(tapestry_${name} INTERFACE)
  tapestry_layer_targets(targets ${ARG_LAYERS})
  list(TRANSFORM TAPESTRY_COMPONENT_USES_${name} PREPEND "tapestry_" OUTPUT_VARIABLE used)
  target_link_libraries(tapestry_${name} INTERFACE ${targets} ${used})
  set_property(GLOBAL PROPERTY TAPESTRY_COMPONENT_TARGET_${name} tapestry_${name})
endfunction()

# The libraries of the layers.
function(tapestry_layer_targets out)
  set(targets "")
  foreach(layer IN LISTS ARGN)
    string(REPLACE "/" "_" name "${layer}")
    get_property(target GLOBAL PROPERTY TAPESTRY_LAYER_TARGET_${name})
    list(APPEND targets ${target})
  endforeach()
  set(${out} ${targets} PARENT_SCOPE)
endfunction()

# All libraries of a component: those of its layers, and its own where that is another one.
function(tapestry_component_targets component out)
  get_property(layers GLOBAL PROPERTY TAPESTRY_LAYERS_OF_${component})
  tapestry_layer_targets(targets ${layers})
  get_property(own GLOBAL PROPERTY TAPESTRY_COMPONENT_TARGET_${component})
  set(${out} ${targets} ${own} PARENT_SCOPE)
endfunction()

# The names that users link, Tapestry::NAME, the same in the build tree and after installation, and
# what tapestry.h goes by. Called when all layers are known.
function(tapestry_finish_layers)
  set(targets "")
  foreach(component IN LISTS TAPESTRY_BUILT_COMPONENTS)
    tapestry_component_targets(${component} own)
    list(APPEND targets ${own})
  endforeach()
  foreach(target IN LISTS targets)
    string(REGEX REPLACE "^tapestry_" "" name "${target}")
    set_target_properties(${target} PROPERTIES EXPORT_NAME "${name}")
    add_library(Tapestry::${name} ALIAS ${target})
  endforeach()
  foreach(component IN LISTS TAPESTRY_BUILT_COMPONENTS)
    string(TOUPPER "TAPESTRY_WITH_${component}" macro)
    target_compile_definitions(tapestry_${component} INTERFACE ${macro})
  endforeach()
endfunction()

# Writes the table of layers for the test `layers`; called when all layers are known.
function(tapestry_write_layers file)
  get_property(layers GLOBAL PROPERTY TAPESTRY_LAYERS)
  set(content "set(TAPESTRY_LAYERS ${layers})\n")
  foreach(layer IN LISTS layers)
    string(REPLACE "/" "_" name "${layer}")
    get_property(uses GLOBAL PROPERTY TAPESTRY_LAYER_USES_${name})
    string(APPEND content "set(TAPESTRY_LAYER_USES_${name} ${uses})\n")
    get_property(rooms GLOBAL PROPERTY TAPESTRY_LAYER_ROOMS_${name})
    string(APPEND content "set(TAPESTRY_LAYER_ROOMS_${name} ${rooms})\n")
  endforeach()
  string(REPLACE ";" " " content "${content}")
  file(CONFIGURE OUTPUT "${file}" CONTENT "${content}" @ONLY)
endfunction()
