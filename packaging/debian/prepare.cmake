# Run by CPack when the files of the packages lie in their folders, before they are packed: adds what
# Debian's policy asks for, and takes out what belongs to the machine that built.
set(debian "${CPACK_TAPESTRY_DEBIAN}")

# add_documents(COMPONENT PACKAGE): copyright, changelog, overrides.
function(add_documents component package)
  set(root "${CPACK_TEMPORARY_DIRECTORY}/${component}/usr/share")
  file(MAKE_DIRECTORY "${root}/doc/${package}")
  file(COPY "${debian}/copyright" DESTINATION "${root}/doc/${package}"
    FILE_PERMISSIONS OWNER_READ OWNER_WRITE GROUP_READ WORLD_READ)
  execute_process(COMMAND gzip -9 -n -c "${debian}/changelog"
    OUTPUT_FILE "${root}/doc/${package}/changelog.gz" COMMAND_ERROR_IS_FATAL ANY)
  if(EXISTS "${debian}/${package}.lintian-overrides")
    file(MAKE_DIRECTORY "${root}/lintian/overrides")
    configure_file("${debian}/${package}.lintian-overrides" "${root}/lintian/overrides/${package}" COPYONLY)
  endif()
endfunction()
add_documents(programs tapestry)
add_documents(development libtapestry-dev)

# Nobody has to load a module for what is in /usr.
file(REMOVE_RECURSE "${CPACK_TEMPORARY_DIRECTORY}/programs/usr/share/tapestry/modulefiles")

# The programs find libraries where Debian has them, not where the build found them; OpenBLAS's flavour
# has a folder of its own.
file(GLOB programs "${CPACK_TEMPORARY_DIRECTORY}/programs/usr/bin/*")
list(FILTER programs EXCLUDE REGEX "\\.sh$")
foreach(program IN LISTS programs)
  file(RPATH_SET FILE "${program}" NEW_RPATH "${CPACK_TAPESTRY_RPATH}")
endforeach()
file(GLOB_RECURSE libraries "${CPACK_TEMPORARY_DIRECTORY}/development/*.a")
execute_process(COMMAND "${CPACK_TAPESTRY_STRIP}" --strip-debug --enable-deterministic-archives
  ${libraries} COMMAND_ERROR_IS_FATAL ANY)
