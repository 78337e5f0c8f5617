#!/usr/bin/env bash
# mpich_test.sh MPIRUN HYDRA PRETRAIN_GPT PRETRAIN_GPT_ON_MPICH PRETRAIN_GPT_SH: a training run has the
# same bits whichever MPI carries its messages; the launcher finds the one that a program is built with.
set -uo pipefail
mpirun="$1"
hydra="$2"
program="$3"
on_mpich="$4"
launcher="$5"
scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT
cd "$scratch" || exit 1
export OMP_NUM_THREADS=1
failures=0

fail() {
  echo "FAILED: $*" >&2
  tail -n 20 "$scratch"/*.txt | sed 's/^/    /' >&2
  failures=$((failures + 1))
}

small=(--set dataset_config.tokenizer_type=byte --set model_config.num_layers=2
  --set model_config.seq_length=32 --set dataset_config.batch_size=2
  --set training_config.training_iters=6 --set training_config.log_interval=1)
preset="$(dirname "$launcher")/pretrain_gpt_tiny.yaml"
losses() { grep -o '"loss":[^,}]*' "$1/output/metrics.jsonl"; }

# In the log, not only in what the linker was told: each program has one MPI.
"$program" --version >version.txt || fail "--version"
grep -q "^MPI: Open MPI" version.txt || fail "the program on Open MPI does not say so"
"$on_mpich" --version >version.txt || fail "--version on MPICH"
grep -qx "MPI: MPICH Version: *[0-9.a-z]*" version.txt || fail "the program on MPICH does not say so"
ldd "$on_mpich" >libraries.txt
grep -q "libmpich" libraries.txt || fail "MPICH's library is not linked"
! grep -q "libmpi\.so\|libmpi_cxx\|libopen-" libraries.txt || fail "Open MPI's library is linked, too"

# train FOLDER COMMAND...: four ranks with tensor and data parallelism.
train() {
  local folder="$1"
  shift
  mkdir "$folder"
  (cd "$folder" && "$@" --config_path "$preset" "${small[@]}" \
    --set parallel_config.tensor_model_parallel_size=2) >"$folder.txt" 2>&1 || fail "training: $folder"
}
train open_mpi "$mpirun" --oversubscribe -n 4 "$program"
train mpich "$hydra" -n 4 "$on_mpich"
[[ "$(losses open_mpi | wc -l)" == 6 ]] || fail "losses of the run under Open MPI"
cmp -s <(losses open_mpi) <(losses mpich) || fail "losses differ between the two MPIs"
cmp -s {open_mpi,mpich}/output/checkpoint/step_00000006/model.safetensors || fail "weights differ"

# Ranks that the other one's launcher starts would be jobs of one rank each.
train_refused() { # FILE TEXT COMMAND...
  local file="$1" text="$2"
  shift 2
  "$@" --config_path "$preset" --dry_run >"$file" 2>&1 && fail "$file: not refused"
  grep -qF "$text" "$file" || fail "$file: no '$text'"
}
train_refused other_launcher.txt "but MPICH, with which this program is built, finds each of them alone" \
  "$mpirun" --oversubscribe -n 2 "$on_mpich"
train_refused other_library.txt "but Open MPI, with which this program is built, finds each of them alone" \
  "$hydra" -n 2 "$program"

# The launcher: the same bits, and a signal stops both ranks in good order.
mkdir launched
(cd launched && RANKS=4 BIND=none PRETRAIN_GPT="$on_mpich" "$launcher" "$preset" "${small[@]}" \
  --set parallel_config.tensor_model_parallel_size=2) >launched.txt 2>&1 || fail "the launcher with MPICH"
cmp -s <(losses open_mpi) <(losses launched) || fail "losses under the launcher differ"
mkdir signal
(cd signal && RANKS=2 BIND=none PRETRAIN_GPT="$on_mpich" exec "$launcher" "$preset" "${small[@]}" \
  --set training_config.training_iters=100000) >signal.txt 2>&1 &
job=$!
for _ in {1..600}; do
  [[ ! -s signal/output/metrics.jsonl ]] || break
  sleep 0.1
done
kill -TERM "$job"
wait "$job" || fail "a run that is asked to stop fails"
grep -qsF "stopped on request after" signal/output/log/rank_1/info.log || fail "rank 1 did not stop"

((failures == 0)) && echo "ok"
exit $((failures > 0))
