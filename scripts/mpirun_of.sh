# shellcheck shell=bash
# shellcheck disable=SC2034  # whoever sources this uses what it sets
# For scripts, which source it: what starts the ranks of a program, under the MPI that it is linked with.

# mpirun_of PROGRAM: sets `mpi` (openmpi or mpich) and `mpirun`, its program with the options by which
# ranks share the cores that there are. Debian's alternatives name one of the two as plain mpirun; where
# the other one has a name of its own, that is taken.
mpirun_of() {
  local libraries
  libraries="$(ldd "$1" 2>/dev/null)" || true # not through a pipe, which grep -q would close early
  mpi=openmpi mpirun=(mpirun --oversubscribe --bind-to none)
  if [[ "$libraries" =~ libmpich|libmpi\.so\.12 ]]; then
    mpi=mpich mpirun=(mpirun -bind-to none)
    ! command -v mpirun.mpich >/dev/null || mpirun[0]=mpirun.mpich
  elif command -v mpirun.openmpi >/dev/null; then
    mpirun[0]=mpirun.openmpi
  fi
}
