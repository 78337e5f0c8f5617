# Read by CPack before it begins: whether this build is one to make packages of.
if(CPACK_TAPESTRY_PROCESSOR MATCHES "^(x86_64|AMD64)$" AND NOT CPACK_TAPESTRY_CPU_LEVELS STREQUAL "all")
  message(FATAL_ERROR "TAPESTRY_CPU_LEVELS is '${CPACK_TAPESTRY_CPU_LEVELS}', but packages are for every "
    "processor; configure with -DTAPESTRY_CPU_LEVELS=all and build again")
endif()
