# Test `layers_catch`: CheckLayers.cmake finds includes that were put into a small tree to be found,
# and nothing else.
#
#   cmake -DCHECK=CheckLayers.cmake -DSCRATCH=folder -P layers_test.cmake
cmake_minimum_required(VERSION 3.25)

file(REMOVE_RECURSE "${SCRATCH}")
set(tree "${SCRATCH}/tree")
file(WRITE "${SCRATCH}/layers.cmake" [[
set(TAPESTRY_LAYERS base/low base/high base/side rooms top)
set(TAPESTRY_LAYER_USES_base_low )
set(TAPESTRY_LAYER_USES_base_high base/low)
set(TAPESTRY_LAYER_USES_base_side base/low)
set(TAPESTRY_LAYER_USES_rooms base)
set(TAPESTRY_LAYER_ROOMS_rooms ground . roof)
set(TAPESTRY_LAYER_USES_top base)
]])
file(WRITE "${tree}/base/low/a.h" "#include <vector>\n")
file(WRITE "${tree}/base/low/a.cpp" "#include \"base/low/a.h\"\n#include \"a.h\"\n")
file(WRITE "${tree}/base/high/b.h" "#include \"base/low/a.h\"\n")
file(WRITE "${tree}/base/side/c.h" "#include \"base/low/a.h\"\n")
file(WRITE "${tree}/rooms/ground/g.h" "#include \"base/low/a.h\"\n")
file(WRITE "${tree}/rooms/m.h" "#include \"rooms/ground/g.h\"\n")
file(WRITE "${tree}/rooms/roof/r.h" "#include \"rooms/m.h\"\n#include \"rooms/ground/g.h\"\n")
file(WRITE "${tree}/top/sub/d.h" "#include \"base/high/b.h\"\n#include \"base/side/c.h\"\n")
file(WRITE "${tree}/top/top.h" "#include \"examples/e.cpp\"\n")  # an umbrella may include anything
file(WRITE "${tree}/examples/e.cpp" "#include \"top/top.h\"\n" "#include \"top/sub/d.h\"\n#include \"base/low/a.h\"\n")
file(WRITE "${tree}/tests/t.h" "#include \"top/sub/d.h\"\n")

function(run out_result out_text)
  execute_process(
    COMMAND "${CMAKE_COMMAND}" "-DLAYERS=${SCRATCH}/layers.cmake" "-DSOURCE_DIR=${tree}" -P "${CHECK}"
    RESULT_VARIABLE result OUTPUT_VARIABLE text ERROR_VARIABLE text)
  set(${out_result} "${result}" PARENT_SCOPE)
  set(${out_text} "${text}" PARENT_SCOPE)
endfunction()

run(result text)
if(NOT result EQUAL 0 OR NOT text MATCHES "layers: 10 files")
  message(FATAL_ERROR "the clean tree should pass: ${result}\n${text}")
endif()

# path, content, and what must be reported.
function(expect_caught path content report)
  file(WRITE "${tree}/${path}" "${content}")
  run(result text)
  if(result EQUAL 0)
    message(FATAL_ERROR "not caught: ${path}\n${text}")
  endif()
  string(FIND "${text}" "${report}" at)
  if(at LESS 0 OR NOT text MATCHES "layers: 1 errors")
    message(FATAL_ERROR "expected only '${report}', got\n${text}")
  endif()
  file(REMOVE "${tree}/${path}")
endfunction()

expect_caught(base/low/up.h "// up\n\n#include \"base/high/b.h\"\n"
  "base/low/up.h:3: error: \"base/high/b.h\" belongs to layer base/high, which base/low does not use")
expect_caught(base/low/up.cpp "  #  include <top/sub/d.h>\n" "base/low/up.cpp:1: error: \"top/sub/d.h\"")
expect_caught(base/side/across.h "#include \"base/low/a.h\"\n#include \"../high/b.h\"\n"
  "base/side/across.h:2: error: \"base/high/b.h\"")
expect_caught(top/f.cpp "#include \"examples/e.cpp\"\n" "top/f.cpp:1: error: \"examples/e.cpp\"")
expect_caught(top/f.cpp "#include \"tests/t.h\"\n" "\"tests/t.h\" belongs to no layer")
expect_caught(examples/g.cpp "#include \"tests/t.h\"\n" "\"tests/t.h\" belongs to no layer")
expect_caught(top/f.cpp "#include \"top/top.h\"\n" "top/f.cpp:1: error: \"top/top.h\" is for programs")
expect_caught(base/high/h.h "#include \"gone.h\"\n" "\"gone.h\" is not in the source tree")

expect_caught(rooms/ground/up.h "#include \"rooms/m.h\"\n"
  "rooms/ground/up.h:1: error: \"rooms/m.h\" lies in the room ., which is above ground")
expect_caught(rooms/up.h "#include \"rooms/roof/r.h\"\n"
  "rooms/up.h:1: error: \"rooms/roof/r.h\" lies in the room roof, which is above .")
expect_caught(rooms/cellar/c.h "// down\n" "cellar is no room of the layer rooms")
foreach(number RANGE 1 25)
  file(WRITE "${tree}/base/side/crowd_${number}.h" "// one of many\n")
endforeach()
expect_caught(base/side/crowd.cpp "// of 26\n" "base/side: error: 26 headers")

file(REMOVE_RECURSE "${tree}")
run(result text)
if(result EQUAL 0)
  message(FATAL_ERROR "an empty tree should not pass\n${text}")
endif()
