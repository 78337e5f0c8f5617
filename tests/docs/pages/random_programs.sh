# shellcheck shell=bash disable=SC2154
page tests/random_programs/README.md
needs 'there is no Python with PyTorch' /usr/bin/python3 -c 'import torch'
stand_in python 'exec /usr/bin/python3 "$@"'
programs="$scratch/programs.txt"

runs 'python tests/random_programs/generate.py /tmp/programs.txt --seed 5000 --count 1000' \
  /tmp/programs.txt="$programs" 1000=20
runs 'TAPESTRY_RANDOM_PROGRAMS=/tmp/programs.txt build/release/tests/test.autograd.random_programs' \
  /tmp/programs.txt="$programs"
says '[  PASSED  ]'
runs 'python tests/random_programs/generate.py /tmp/one.txt --seed 5017 --count 1' \
  /tmp/one.txt="$scratch/one.txt"
runs_or 1 'python tests/random_programs/shrink.py /tmp/programs.txt 5017' /tmp/programs.txt="$programs"
says 'seed 5017: no difference'
runs 'python tests/random_programs/generate.py tests/random_programs/sample.txt --seed 1 --count 2000' \
  2000=20
runs 'python tests/random_programs/saved.py tests/random_programs/saved.txt' \
  saved.txt='saved.txt --count 1'
unrunnable apt_get 'apt-get install python3-torch' 'installs packages, as root' \
  known_packages python3-torch
