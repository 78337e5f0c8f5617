# What is installed beside libraries and programs (man pages, completions, documentation, a module
# file), and Debian packages of it all: `cpack` in the build folder, or the target `packages`, which
# builds what belongs to them alone. See docs/install.md.
#
#   tapestry        the component `programs`
#   libtapestry-dev the component `development`

# The version's date is that of Debian's changelog, whose first entry must be this version.
set(debian "${PROJECT_SOURCE_DIR}/packaging/debian")
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${debian}/changelog")
file(READ "${debian}/changelog" changelog)
if(NOT changelog MATCHES "^tapestry \\(${PROJECT_VERSION}\\) ")
  message(FATAL_ERROR "packaging/debian/changelog does not begin with an entry for ${PROJECT_VERSION}, the "
    "project's version; add one")
endif()
string(REGEX MATCH "\n -- ([^\n]*)  [A-Z][a-z][a-z], ([0-9][0-9]) ([A-Z][a-z][a-z]) ([0-9]+) "
  signature "${changelog}")
set(contact "${CMAKE_MATCH_1}")
set(months Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec)
list(FIND months "${CMAKE_MATCH_3}" month)
math(EXPR month "${month} + 101")  # two digits, behind a one
string(SUBSTRING "${month}" 1 2 month)
set(TAPESTRY_RELEASE_DATE "${CMAKE_MATCH_4}-${month}-${CMAKE_MATCH_2}")

include(TapestryInstall)
set(TAPESTRY_MANUAL_DIR "${PROJECT_BINARY_DIR}/manual")
add_subdirectory("${PROJECT_SOURCE_DIR}/packaging")
if(NOT TARGET pretrain_gpt)
  return()
endif()

# ---- Beside the programs.
if(TARGET manual)
  set(zsh_folder zsh/site-functions)
  if(EXISTS /etc/debian_version)
    set(zsh_folder zsh/vendor-completions)  # where Debian's zsh looks
  endif()
  set(TAPESTRY_ZSH_DIR "${CMAKE_INSTALL_DATADIR}/${zsh_folder}" CACHE STRING "Where completions for zsh go")
  install(DIRECTORY "${TAPESTRY_MANUAL_DIR}/man/" DESTINATION "${CMAKE_INSTALL_MANDIR}/man1"
    COMPONENT programs FILES_MATCHING PATTERN "*.1.gz")
  install(DIRECTORY "${TAPESTRY_MANUAL_DIR}/man/" DESTINATION "${CMAKE_INSTALL_MANDIR}/man5"
    COMPONENT programs FILES_MATCHING PATTERN "*.5.gz")
  install(DIRECTORY "${TAPESTRY_MANUAL_DIR}/bash/" COMPONENT programs
    DESTINATION "${CMAKE_INSTALL_DATADIR}/bash-completion/completions")
  install(DIRECTORY "${TAPESTRY_MANUAL_DIR}/zsh/" COMPONENT programs DESTINATION "${TAPESTRY_ZSH_DIR}")
endif()
# Pages and examples lie to each other as in the source, so that the links of the pages hold.
set(documentation "${CMAKE_INSTALL_DATADIR}/doc/tapestry")
install(FILES README.md CHANGELOG.md DESTINATION "${documentation}" COMPONENT programs)
install(DIRECTORY docs DESTINATION "${documentation}" COMPONENT programs FILES_MATCHING PATTERN "*.md")
install(DIRECTORY examples DESTINATION "${documentation}" COMPONENT programs
  PATTERN "CMakeLists.txt" EXCLUDE PATTERN "*.in" EXCLUDE PATTERN "pretrain_gpt*.sh" EXCLUDE)
# Where it is installed is known only then.
install(CODE "set(tapestry_version \"${PROJECT_VERSION}\")
set(tapestry_module_file \"${PROJECT_SOURCE_DIR}/packaging/module/tapestry.tcl.in\")
set(tapestry_zsh_folder \"${TAPESTRY_ZSH_DIR}\")
set(tapestry_module_folder \"\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_DATADIR}/tapestry/modulefiles/tapestry\")"
  COMPONENT programs)
install(SCRIPT "${PROJECT_SOURCE_DIR}/packaging/module/install_module.cmake" COMPONENT programs)

# ---- The packages.
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME tapestry)
set(CPACK_PACKAGE_VERSION "${PROJECT_VERSION}")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "training of GPT language models on CPUs and CPU clusters")
set(CPACK_PACKAGE_CONTACT "${contact}")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS
  OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
set(CPACK_COMPONENTS_ALL programs development)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_GROUPING IGNORE)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_ENABLE_COMPONENT_DEPENDS OFF)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
# Debian's name of what the compiler compiles for, which may be another machine than this one.
find_program(TAPESTRY_DPKG_ARCHITECTURE dpkg-architecture)
mark_as_advanced(TAPESTRY_DPKG_ARCHITECTURE)
if(TAPESTRY_DPKG_ARCHITECTURE)
  execute_process(COMMAND "${CMAKE_CXX_COMPILER}" -dumpmachine
    OUTPUT_VARIABLE machine OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  string(REPLACE "-pc-" "-" machine "${machine}")  # as Clang says it
  execute_process(COMMAND "${TAPESTRY_DPKG_ARCHITECTURE}" -t "${machine}" -q DEB_HOST_ARCH
    OUTPUT_VARIABLE CPACK_DEBIAN_PACKAGE_ARCHITECTURE OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()

# Whose mpirun the launcher calls, and whose library is linked.
tapestry_mpi_package(${TAPESTRY_MPI} mpi_dev)
set(mpi_launcher_openmpi openmpi-bin)
set(mpi_launcher_mpich mpich)
set(CPACK_DEBIAN_PROGRAMS_PACKAGE_NAME tapestry)
set(CPACK_DEBIAN_PROGRAMS_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PROGRAMS_PACKAGE_PRIORITY optional)
set(CPACK_DEBIAN_PROGRAMS_PACKAGE_SHLIBDEPS ON)
# OpenBLAS by its flavour: see packaging/debian/tapestry.lintian-overrides.
set(CPACK_DEBIAN_PROGRAMS_PACKAGE_DEPENDS "${mpi_launcher_${TAPESTRY_MPI}}, libopenblas0-openmp")
set(CPACK_DEBIAN_PROGRAMS_PACKAGE_RECOMMENDS bible-kjv)  # whose text the first run trains on
set(CPACK_DEBIAN_PROGRAMS_PACKAGE_SUGGESTS "libtapestry-dev, bash-completion, environment-modules")
set(CPACK_DEBIAN_PROGRAMS_DESCRIPTION
"Tapestry trains and tunes GPT language models on processors without GPUs,
from a YAML file and from one process to many hosts, with tensor, pipeline,
data, context and expert parallelism over MPI.
.
This package has the programs, presets, documentation and examples. The
kernels for every level of the processor (AVX2, AVX-512, bfloat16) are inside
and chosen when a program starts.")
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_NAME libtapestry-dev)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_PRIORITY optional)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SHLIBDEPS OFF)
# All that cmake/TapestryComponents.cmake asks for where the package is found.
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS "libdnnl-dev, libeigen3-dev, ${mpi_dev}, \
libopenblas-openmp-dev, libpcre2-dev, libsentencepiece-dev, libspdlog-dev, libutf8proc-dev, \
libyaml-cpp-dev, nlohmann-json3-dev, pkg-config")
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SUGGESTS "tapestry, cmake, g++")
set(CPACK_DEBIAN_DEVELOPMENT_DESCRIPTION
"This package has Tapestry's libraries for C++20: an eager autograd framework
with modules and optimizers, and a Megatron-style core that trains GPT models
in parallel. They are static libraries, with headers and the files by which
CMake's find_package(Tapestry) finds them.")

set(CPACK_PROJECT_CONFIG_FILE "${debian}/check.cmake")
set(CPACK_TAPESTRY_CPU_LEVELS "${TAPESTRY_CPU_LEVELS}")
set(CPACK_TAPESTRY_PROCESSOR "${CMAKE_SYSTEM_PROCESSOR}")
# Files that only a Debian package has, and what is done to all of them before they are packed.
set(CPACK_PRE_BUILD_SCRIPTS "${debian}/prepare.cmake")
set(CPACK_TAPESTRY_DEBIAN "${debian}")
set(CPACK_TAPESTRY_STRIP "${CMAKE_STRIP}")
set(CPACK_TAPESTRY_RPATH "${TAPESTRY_OPENBLAS_DIR}")
if(CMAKE_CROSSCOMPILING)
  # The libraries lie below a folder here and in / where the package is installed. dpkg-shlibdeps is told
  # where they are, and which package each belongs to by a database of that folder: see check.cmake and
  # scripts/aarch64.sh, which makes it.
  foreach(folder IN LISTS CMAKE_FIND_ROOT_PATH)
    string(REGEX REPLACE "^${folder}/" "/" CPACK_TAPESTRY_RPATH "${CPACK_TAPESTRY_RPATH}")
    set(CPACK_TAPESTRY_DPKG_DATABASE "${folder}/dpkg")
    set(libraries "${folder}/usr/lib/${CMAKE_LIBRARY_ARCHITECTURE}")
    list(APPEND CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS "${libraries}/openblas-openmp" "${libraries}"
      "${folder}/lib/${CMAKE_LIBRARY_ARCHITECTURE}")
  endforeach()
endif()
if(PROJECT_IS_TOP_LEVEL)
  include(CPack)
  # Without the tests and benchmarks that `all` has.
  get_property(programs GLOBAL PROPERTY TAPESTRY_PROGRAMS)
  set(libraries "")
  foreach(component IN LISTS TAPESTRY_BUILT_COMPONENTS)
    tapestry_component_targets(${component} targets)
    list(APPEND libraries ${targets})
  endforeach()
  add_custom_target(packages COMMAND "${CMAKE_CPACK_COMMAND}" --config "${PROJECT_BINARY_DIR}/CPackConfig.cmake"
    WORKING_DIRECTORY "${PROJECT_BINARY_DIR}" COMMENT "Making Debian packages" USES_TERMINAL VERBATIM)
  add_dependencies(packages programs ${libraries})
endif()
