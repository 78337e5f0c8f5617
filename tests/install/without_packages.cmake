# Arguments of cmake that hide what only parallel_core and the programs need.
set(WITHOUT_PACKAGES "")
foreach(package IN ITEMS MPI yaml-cpp spdlog Boost PkgConfig)  # SentencePiece is found by PkgConfig
  list(APPEND WITHOUT_PACKAGES -DCMAKE_DISABLE_FIND_PACKAGE_${package}=ON)
endforeach()
