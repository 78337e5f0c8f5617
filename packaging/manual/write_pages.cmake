# Asks the programs for their tables and writes their man pages and completions:
#
#   cmake -DPROGRAMS=files -DLAUNCHER=pretrain_gpt.sh -DEMULATOR=command -DMANUAL_PAGES=program
#         -DOUT=folder -DVERSION=0.1.0 -DDATE=2026-11-28 -P write_pages.cmake
cmake_minimum_required(VERSION 3.25)

function(run out)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE result OUTPUT_VARIABLE text ERROR_VARIABLE error)
  if(NOT result EQUAL 0)
    list(JOIN ARGN " " command)
    message(FATAL_ERROR "${command}\n${error}")
  endif()
  set(${out} "${text}" PARENT_SCOPE)
endfunction()

# tables(NAME PROGRAM word...): what the program prints for these words, in NAME.json.
function(tables name program)
  run(text ${EMULATOR} "${program}" ${ARGN} --help as_json)
  file(WRITE "${OUT}/tables/${name}.json" "${text}")
  set(text "${text}" PARENT_SCOPE)
endfunction()

file(REMOVE_RECURSE "${OUT}")
foreach(program IN LISTS PROGRAMS)
  cmake_path(GET program FILENAME name)
  tables("${name}" "${program}")
  string(JSON commands ERROR_VARIABLE none LENGTH "${text}" commands)
  if(none STREQUAL "NOTFOUND")
    set(of_program "${text}")
    math(EXPR last "${commands} - 1")
    foreach(index RANGE ${last})
      string(JSON command GET "${of_program}" commands ${index} name)
      tables("${name}.${command}" "${program}" "${command}")
    endforeach()
  endif()
  if(name STREQUAL "accuracy")  # a form of a command with options of its own
    tables("${name}.compare --bits" "${program}" compare --bits)
  endif()
endforeach()
run(text "${LAUNCHER}" --help)
cmake_path(GET LAUNCHER FILENAME name)
file(WRITE "${OUT}/tables/${name}.txt" "${text}")

run(text ${EMULATOR} "${MANUAL_PAGES}" "${OUT}/tables" "${CMAKE_CURRENT_LIST_DIR}" "${OUT}" "${VERSION}" "${DATE}")
file(GLOB pages "${OUT}/man/*")
run(text gzip -9 -n ${pages})
