# Run by `cmake --install`: the file that `module load tapestry` reads.
configure_file("${tapestry_module_file}" "$ENV{DESTDIR}${tapestry_module_folder}/${tapestry_version}" @ONLY)
list(APPEND CMAKE_INSTALL_MANIFEST_FILES "${tapestry_module_folder}/${tapestry_version}")
