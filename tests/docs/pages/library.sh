# shellcheck shell=bash disable=SC2154
page docs/library.md

# From the build that there is; the clone's has no libraries.
runs 'cmake --install build/release --prefix DIR' build/release="$binary_dir" DIR="$scratch/prefix"
leaves ../prefix/bin/pretrain_gpt ../prefix/include/tapestry/tapestry.h
