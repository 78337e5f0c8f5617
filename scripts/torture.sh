#!/usr/bin/env bash
# Kills a training run at random moments, half of them while it saves, goes on with it each time, and
# compares what comes out with a run that nobody has disturbed: weights, optimizer state, position
# and metrics. The last line is the verdict, "torture: passed: ..." or "torture: FAILED: ..."; the
# exit code is 0 or 1, and 2 for wrong arguments. Needs no network and nothing but this folder's
# programs (and mpirun for more than one rank).
#
#   scripts/torture.sh                              20 kills of one process, on a model and a text of its own
#   scripts/torture.sh --kills 100 --ranks 4        four data-parallel ranks
#   scripts/torture.sh --layout dp=2,tp=2 --layouts "dp=1 pp=2,tp=2 dp=4,zero=z3"
#   scripts/torture.sh --config my.yaml --set training_config.training_iters=200
#
#   --kills N        kills in all (20)
#   --seconds N      no further kills after so many seconds (no limit)
#   --ranks N        processes of the run, under mpirun (1)
#   --layout LAYOUT  layout of the run: dp, tp, pp, cp, vpp, zero=z1..z3 and sp, as in
#                    dp=2,tp=2,sp,zero=z1; sets --ranks
#   --layouts LIST   every second run changes its layout: each time it goes on, it takes one of these
#   --seed N         of the moments and choices (from the clock; it is printed)
#   --config FILE    a configuration of your own, with a save_interval; its output_dir is not touched
#   --set KEY=VALUE  as in pretrain_gpt; may be repeated
#   --bound X        largest difference where the layout has changed: of a tensor relative to its
#                    largest value (1e-4); else the bits have to be the same
#   --build DIR      folder with the built programs (build/release)
#   --programs DIR   folder with pretrain_gpt and compare_checkpoints (BUILD/examples/gpt)
#   --work DIR       folder for the runs; kept. Else a temporary one, kept only on failure
#
# A run that has reached its end is compared, and the next one begins, until the kills are done.
set -uo pipefail
usage() { sed -n '2,/^set /{/^set /!s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; }
if [[ "${1:-}" == -h || "${1:-}" == --help ]]; then
  usage
  exit 0
fi
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
# shellcheck source-path=SCRIPTDIR source=mpirun_of.sh
source "$root/scripts/mpirun_of.sh"
wrong() {
  echo "torture.sh: $*; --help shows the options" >&2
  exit 2
}

kills=20 seconds=0 ranks=1 layout="" layouts=() seed="" config="" bound=1e-4 build="$root/build/release"
programs="" work="" user_set=()
while (($# > 0)); do
  (($# > 1)) || wrong "$1 needs a value, or is no option"
  case "$1" in
    --kills | --seconds | --ranks | --seed)
      [[ "$2" =~ ^[0-9]{1,9}$ ]] || wrong "$1 is '$2', expected a number"
      printf -v "${1#--}" '%d' "$((10#$2))"
      ;;
    --layout | --config | --bound | --build | --programs | --work) printf -v "${1#--}" '%s' "$2" ;;
    --layouts) read -ra layouts <<<"$2" ;;
    --set)
      [[ "$2" == *=* ]] || wrong "--set is '$2', expected KEY=VALUE"
      user_set+=(--set "$2")
      ;;
    *) wrong "unknown option $1" ;;
  esac
  shift 2
done
((kills > 0)) || wrong "--kills is 0, expected at least 1"
((ranks > 0)) || wrong "--ranks is 0, expected at least 1"
[[ "$bound" =~ ^[0-9]*\.?[0-9]+(e-?[0-9]+)?$ ]] || wrong "--bound is '$bound', expected a number"
[[ -z "$config" || -f "$config" ]] || wrong "$config: no such file"
programs="${programs:-$build/examples/gpt}"
for program in pretrain_gpt compare_checkpoints; do
  [[ -x "$programs/$program" ]] || wrong "$programs/$program: is not built (cmake --build $build --target $program)"
done
programs="$(cd "$programs" && pwd)"

# read_layout LAYOUT: sets layout_ranks, layout_dp and layout_set, the options of pretrain_gpt.
read_layout() {
  local word name value pair
  layout_dp=1 layout_set=()
  local -A size=([tp]=1 [pp]=1 [cp]=1 [vpp]="" [zero]=null [sp]=False)
  for word in ${1//,/ }; do
    name="${word%%=*}" value="${word#*=}"
    [[ "$word" == sp ]] && value=True
    case "$name" in
      dp | tp | pp | cp | vpp) [[ "$value" =~ ^[1-9][0-9]{0,3}$ ]] || wrong "$1: $word has no size" ;;
      zero) [[ "$value" == z[1-3] ]] || wrong "$1: $word is none of zero=z1, z2, z3" ;;
      sp) ;;
      *) wrong "$1: '$word' is none of dp, tp, pp, cp, vpp, zero and sp" ;;
    esac
    [[ "$name" == dp ]] && layout_dp="$value" || size[$name]="$value"
  done
  for pair in "tensor_model_parallel_size=${size[tp]}" "pipeline_model_parallel_size=${size[pp]}" \
    "virtual_pipeline_model_parallel_size=${size[vpp]:-null}" "context_parallel_size=${size[cp]}" \
    "sequence_parallel=${size[sp]}" "zero_level=${size[zero]}"; do
    layout_set+=(--set "parallel_config.$pair")
  done
  layout_ranks=$((layout_dp * size[tp] * size[pp] * size[cp]))
}
for other in "${layouts[@]}"; do
  read_layout "$other"
done
if [[ -n "$layout" ]]; then
  read_layout "$layout"
  ranks=$layout_ranks
  base_set=("${layout_set[@]}")
else
  base_set=()
fi

seed="${seed:-$(($(date +%s) % 1000000))}"
RANDOM=$((seed % 32768))
keep_work=true
if [[ -z "$work" ]]; then
  work="$(mktemp -d "${TMPDIR:-/tmp}/torture.XXXXXX")"
  keep_work=false
fi
mkdir -p "$work" || exit 1
work="$(cd "$work" && pwd)"
[[ -z "$(ls -A "$work")" ]] || wrong "--work $work: is not empty"

# The model and the text of its own. Weights whose gradient is nothing but rounding (a bias of
# keys), and steps of Adam along such (a small eps), would follow the rounding of each layout.
base_dp=$ranks
[[ -z "$layout" ]] || base_dp=$layout_dp
if [[ -z "$config" ]]; then
  config="$work/torture.yaml"
  who=("the king" "a servant" "the prophet" "his brother") did=("went up to" "looked upon" "departed from")
  where=("the city" "the mountain" "the house" "the river" "the land")
  for ((i = 0; i < 400; ++i)); do
    echo "And ${who[i * 7 % 4]} ${did[i * 5 % 3]} ${where[i * 11 % 5]}, and $((i * 37 % 101)) were there."
  done >"$work/text.txt"
  cat >"$config" <<YAML
training_config:
  training_iters: 120
  seed: 11
  num_threads: 1
  save_interval: 4
  keep_checkpoint_max: 3
  eval_interval: 20
  eval_iters: 2
dataset_config:
  text: text.txt
  tokenizer_type: byte
  batch_size: $((base_dp > 4 ? 1 : 4 / base_dp))
  micro_batch_num: 2
  split: 90,10,0
model_config:
  vocab_size: 260
  num_layers: 4
  hidden_size: 32
  ffn_hidden_size: 64
  num_attention_heads: 4
  seq_length: 32
  qkv_has_bias: False
  hidden_dropout: 0.1
  attention_dropout: 0.1
optimizer_config:
  learning_rate: 1e-3
  lr_decay_style: cosine
  eps: 1e-6
YAML
  cd "$work" || exit 1  # where the tokens of the text are kept, too
fi

exec {nap}<> <(:)
pause_us() {  # pause_us MICROSECONDS, without a process of its own
  local seconds
  printf -v seconds '%d.%06d' $(($1 / 1000000)) $(($1 % 1000000))
  read -rt "$seconds" -u "$nap" _
}
now_us() { now="${EPOCHREALTIME/[.,]/}"; }
random_below() { random=$(((RANDOM * 32768 + RANDOM) % ($1 > 0 ? $1 : 1))); }
# A child that has ended but was not waited for still answers to kill -0 where SIGCHLD is blocked.
is_running() {
  local line
  { read -r line <"/proc/$1/stat"; } 2>/dev/null && [[ "${line##*) }" != [ZX]* ]]
}
saving() { compgen -G "$1/checkpoint/.step_*.tmp" >/dev/null; }
newest_in() { compgen -G "$1/checkpoint/step_*" | sort | tail -n 1; }

# launch FOLDER RANKS OPTION...: starts a run in a session of its own; sets pid.
launch() {
  local folder="$1" processes="$2" launcher=()
  shift 2
  if ((processes > 1)); then
    # Killed ranks leave files for the memory that they share: not outside the folder.
    mkdir -p "$work/mpi"
    mpirun_of "$programs/pretrain_gpt"
    launcher=("${mpirun[@]}" -n "$processes")
    [[ $mpi == mpich ]] || launcher+=(--mca orte_tmpdir_base "$work/mpi" --mca btl_vader_backing_directory "$work/mpi")
    ((EUID != 0)) || export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
  fi
  setsid "${launcher[@]}" "$programs/pretrain_gpt" --config_path "$config" "${user_set[@]}" "$@" \
    --set "training_config.output_dir=$folder" --set training_config.load_checkpoint= \
    >"$work/last.log" 2>&1 </dev/null &
  pid=$!
}
# Kills every process of a session at once: ranks have groups, but no sessions, of their own.
kill_session() {
  kill_processes_of "$1" 2>/dev/null  # where the shell says that they were killed
}
kill_processes_of() {
  local stat line fields members
  while :; do
    members=()
    for stat in /proc/[0-9]*/stat; do
      read -r line <"$stat" || continue
      read -ra fields <<<"${line##*) }"  # state, parent, group, session
      [[ "${fields[3]}" != "$1" || "${fields[0]}" == [ZX] ]] || members+=("${line%% *}")
    done
    ((${#members[@]} > 0)) || break
    kill -9 "${members[@]}"
    pause_us 1000
  done
  wait "$1"
}
pid=""
clean_up() {
  [[ -z "$pid" ]] || kill_session "$pid"
  $keep_work || rm -rf "$work"
}
trap clean_up EXIT
trap 'exit 130' INT TERM

fail() {
  keep_work=true
  [[ ! -s "$work/last.log" ]] || tail -n 25 "$work/last.log" | sed 's/^/    /'
  echo "torture: FAILED: $*; after $killed kills, seed $seed; all files are in $work"
  exit 1
}
# member NAME: its value in the resolved configuration of the reference run.
member() { sed -n "s/^  $1: *\([^ #]*\).*/\1/p" "$work/reference/config.yaml" | head -n 1; }

killed=0 inside=0 changed_kills=0 runs=0 same_bits=0 close=0 largest=0
echo "torture: seed $seed, $ranks rank(s), $kills kills; the undisturbed run first"
now_us
begin=$now
launch "$work/reference" "$ranks" "${base_set[@]}"
first_step=0 save_start=0 save_us=0 saves=0
while is_running "$pid"; do
  now_us
  ((first_step > 0)) || [[ ! -s "$work/reference/metrics.jsonl" ]] || first_step=$((now - begin))
  if saving "$work/reference"; then
    ((save_start > 0)) || save_start=$now
  elif ((save_start > 0)); then
    save_us=$((save_us + now - save_start)) saves=$((saves + 1)) save_start=0
  fi
  pause_us 500
done
wait "$pid" || fail "the undisturbed run ends with exit code $?"
pid=""
now_us
whole_us=$((now - begin))
save_us=$((saves > 0 ? save_us / saves : 5000))
[[ -n "$(newest_in "$work/reference")" ]] || fail "the undisturbed run saves nothing; set save_interval"
((saves > 1)) || [[ "$(member save_interval)$(member save_interval_seconds)" =~ [0-9] ]] ||
  fail "the configuration saves at the end alone; set training_config.save_interval"
printf 'torture: it took %d ms, %d to its first step; a save about %d ms\n' \
  $((whole_us / 1000)) $((first_step / 1000)) $((save_us / 1000))

# The samples of a step stay the same, whatever the layout.
batch_size="$(member batch_size)" micro_batches="$(member micro_batch_num)"
samples=$((batch_size * micro_batches * ranks / $(member tensor_model_parallel_size) / \
  $(member pipeline_model_parallel_size) / $(member context_parallel_size)))

# choose_layout: sets attempt_ranks and attempt_set, those of the run or of another layout.
choose_layout() {
  attempt_ranks=$ranks attempt_set=("${base_set[@]}") attempt_layout=""
  ((${#layouts[@]} > 0 && runs % 2 == 1)) || return 0
  random_below "${#layouts[@]}"
  attempt_layout="${layouts[random]}"
  read_layout "$attempt_layout"
  local count=$micro_batches
  ((samples % (count * layout_dp) == 0)) || count=1
  ((samples % (count * layout_dp) == 0)) ||
    wrong "--layouts: $attempt_layout: $samples samples of a step are not divided by dp $layout_dp"
  attempt_ranks=$layout_ranks
  attempt_set=("${layout_set[@]}" --set "dataset_config.micro_batch_num=$count"
    --set "dataset_config.batch_size=$((samples / count / layout_dp))")
}

# wait_for_moment FOLDER BEFORE AIMED: returns when the run is to be killed, 1 if it has ended. So
# many microseconds after its start, or, aimed, somewhere in the first save after that.
wait_for_moment() {
  local end
  now_us
  end=$((now + $2))
  while is_running "$pid"; do
    now_us
    if ((now >= end)); then
      $3 || return 0
      if saving "$1"; then
        random_below $((save_us / 2))
        pause_us $((random + 1))
        return 0
      fi
    fi
    pause_us 500
  done
  return 1
}

# finish_round FOLDER: compares a run that has reached its end.
finish_round() {
  local bounds=() text
  if $layout_changed; then
    bounds=(--bound "$bound")
  fi
  text="$("$programs/compare_checkpoints" "$work/reference" "$1" "${bounds[@]}" 2>&1)" || {
    echo "    ${text//$'\n'/$'\n'    }"
    fail "run $((runs + 1)) is not what the undisturbed run is"
  }
  if $layout_changed; then
    close=$((close + 1))
    largest="$(sed -n 's/.*largest difference \([^ ]*\).*/\1/p' <<<"$text" | sort -g | tail -n 1 |
      { read -r found; printf '%s\n' "${found:-0}" "$largest"; } | sort -g | tail -n 1)"
  else
    same_bits=$((same_bits + 1))
  fi
  runs=$((runs + 1))
  echo "torture: run $runs is whole after $round_kills kills, $killed in all ($inside inside a save): $(
    $layout_changed && echo "layout changed, largest difference so far $largest" || echo "the same bits")"
  rm -rf "$1"
}

# So many kills of a run at most, so that there are several runs.
most=$((kills < 20 ? (kills + 1) / 2 : 10))
deadline=$((seconds > 0 ? begin + seconds * 1000000 : 0))
enough() {
  now_us
  ((killed >= kills || (deadline > 0 && now > deadline)))
}
while ! enough || ((runs == 0)); do
  run="$work/run_$((runs + 1))" layout_changed=false round_kills=0
  while :; do
    choose_layout
    [[ -z "$attempt_layout" ]] || layout_changed=true
    random_below 2
    async=$( ((random)) && echo True || echo False)
    newest="$(newest_in "$run")"
    launch "$run" "$attempt_ranks" "${attempt_set[@]}" --set training_config.resume_training=True \
      --set "training_config.async_save=$async"
    if ((round_kills >= most)) || enough; then
      ended=true
    else
      aimed=$( ((2 * inside <= killed)) && echo true || echo false)
      random_below $((first_step * 3 / 2 + whole_us / 6))
      wait_for_moment "$run" "$random" "$aimed" && ended=false || ended=true
    fi
    if ! $ended; then
      kill_session "$pid"
      killed=$((killed + 1)) round_kills=$((round_kills + 1))
      [[ -z "$attempt_layout" ]] || changed_kills=$((changed_kills + 1))
      if saving "$run"; then
        inside=$((inside + 1))
      fi
    else
      wait "$pid" || fail "going on with ${newest:-nothing} ends with exit code $?"
    fi
    pid=""
    if [[ -n "$newest" ]]; then
      grep -q "holds no checkpoint" "$work/last.log" && fail "$newest was not found"
      [[ -e "$newest" || -n "$(newest_in "$run")" ]] || fail "$newest is gone, and there is no later one"
    fi
    ! $ended || break
  done
  finish_round "$run"
done

text="$killed kills, $inside of them inside a save, in $runs runs"
((changed_kills == 0)) || text+=", $changed_kills kills in another layout"
text+="; $same_bits runs bit for bit"
((close == 0)) || text+=", $close of changed layout within $largest (bound $bound)"
echo "torture: passed: $text; seed $seed"
