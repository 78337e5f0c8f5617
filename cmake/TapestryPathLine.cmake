# Run by `cmake --install`: how a shell finds the installed programs, whose folder is ${tapestry_programs}.
string(FIND ":$ENV{PATH}:" ":${tapestry_programs}:" on_path)
if(on_path LESS 0)
  string(REPLACE "'" "'\\''" quoted "${tapestry_programs}")
  message(STATUS "For this shell, or in ~/.bashrc: export PATH='${quoted}':\"$PATH\"")
endif()
