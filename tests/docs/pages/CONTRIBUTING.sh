# shellcheck shell=bash disable=SC2154
page CONTRIBUTING.md
export GTEST_FILTER='Npy*:RmsNorm*'

small ctest -R '^autograd.io$'
runs 'bash scripts/test.sh'
says '100% tests passed'

small ctest
runs 'cmake --preset release'
runs 'cmake --build build/release --target test.autograd.io && ctest --test-dir build/release -R autograd.io'
says 'autograd.io ..'
says '100% tests passed'
runs "build/release/tests/test.autograd.io --gtest_filter='Npy*'"
says '[  PASSED  ]'
runs 'cmake --preset release -DTAPESTRY_UNITY=OFF'

runs 'cmake --build build/release --target test.autograd.ops && ctest --test-dir build/release -R autograd.ops@avx2'
says 'autograd.ops@avx2 ..'
runs_or 77 'build/release/tests/test.autograd.ops --cpu_level=avx2' # 77: there is no AVX2
small ctest -R '^autograd.io$'
runs 'TAPESTRY_CPU_LEVEL=avx2 OPENBLAS_CORETYPE=Haswell bash scripts/test.sh'
says '100% tests passed'

# What ctest chooses, listed.
small ctest -N
in_folder build/release
runs 'ctest -V'
says 'autograd.ops@portable'
runs 'ctest -L avx2'
says 'autograd.ops@avx2'
runs 'ctest -L mpi'
says 'parallel_core.mpi.2'
in_folder .
runs 'cmake --preset asan && cmake --build --preset asan && ctest --preset asan'
says 'autograd.io'

# Clang is not among the packages that the tests need; the test `fuzz` runs the same targets.
unrunnable fuzz 'cmake --preset fuzz && cmake --build --preset fuzz' 'needs Clang and takes minutes' \
  cmake --list-presets=build
unrunnable fuzz_run 'build/fuzz/tests/fuzz/fuzz.manifest -max_total_time=600 -timeout=10 -rss_limit_mb=512 -malloc_limit_mb=16 -artifact_prefix=build/fuzz/found/ build/fuzz/found tests/fuzz/corpus/manifest' \
  'needs Clang and takes ten minutes' ls tests/fuzz/corpus/manifest/whole_three
runs 'mkdir -p build/fuzz/found'
unrunnable apt_get_clang 'apt-get install clang' 'installs packages, as root' known_packages clang

# clang-format and clang-tidy are not among the packages that the tests need.
stand_in clang-format 'echo "formats $*"'
prepare git init -q .
runs 'scripts/format.sh --fix'
says 'autograd/tensor/error.h'

unrunnable apt_get 'apt-get install clang-format clang-tidy' 'installs packages, as root' \
  known_packages clang-format clang-tidy
unrunnable aarch64 'bash scripts/aarch64.sh' \
  'fetches a cross compiler and runs under qemu for a quarter of an hour' bash scripts/aarch64.sh --help
