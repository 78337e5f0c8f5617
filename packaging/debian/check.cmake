# Read by CPack before it begins: whether this build is one to make packages of, and for which machine.
if(CPACK_TAPESTRY_PROCESSOR MATCHES "^(x86_64|AMD64)$" AND NOT CPACK_TAPESTRY_CPU_LEVELS STREQUAL "all")
  message(FATAL_ERROR "TAPESTRY_CPU_LEVELS is '${CPACK_TAPESTRY_CPU_LEVELS}', but packages are for every "
    "processor; configure with -DTAPESTRY_CPU_LEVELS=all and build again")
endif()
# Cross-compiled: dpkg-shlibdeps takes the other architecture's tools, and its packages from a database of
# them.
if(CPACK_TAPESTRY_DPKG_DATABASE)
  if(NOT EXISTS "${CPACK_TAPESTRY_DPKG_DATABASE}/status")
    message(FATAL_ERROR "${CPACK_TAPESTRY_DPKG_DATABASE} says nothing of packages; scripts/aarch64.sh makes it")
  endif()
  set(ENV{DPKG_ADMINDIR} "${CPACK_TAPESTRY_DPKG_DATABASE}")
  set(ENV{DEB_HOST_ARCH} "${CPACK_DEBIAN_PACKAGE_ARCHITECTURE}")
endif()
