#!/usr/bin/env bash
# Brings a training back after a lost rank, a lost host or a crash. pretrain_gpt.sh --restarts does it
# with these functions; a batch system that starts jobs again by itself uses the commands:
#
#   pretrain_gpt_restarts.sh begin OUTPUT                    before each start
#   pretrain_gpt_restarts.sh end OUTPUT CODE [--restarts N]  after it, with its exit code
#
# OUTPUT is the run's output folder. `end` says on standard error what has happened; its exit code says
# what to do: 0 start again, 3 leave it (finished, stopped on request, bad input, the same step twice in
# a row, or started again N times already). All starts of a job count together: those of one
# SLURM_JOB_ID, or of one TAPESTRY_JOB. OUTPUT/restarts.jsonl tells about every start.

# ---- The record: two lines for each start.

say() { echo "pretrain_gpt.sh: $*" >&2; }

# json_text TEXT: as a JSON string, of one line.
json_text() {
  local text="${1//\\/\\\\}"
  text="${text//\"/\\\"}"
  printf '"%s"' "$(tr '[:cntrl:]' ' ' <<<"$text" | sed 's/ *$//')"
}

# member NAME <<<LINE: a number, or a text without quotes and commas.
member() { sed -n "s/.*\"$1\":\"\{0,1\}\([^\",}]*\).*/\1/p"; }

# events KIND: the lines of this job, oldest first.
events() { grep -sF "{\"event\":\"$1\",\"job\":\"$job_name\"," "$folder/restarts.jsonl" || true; }

now() { date -u +%Y-%m-%dT%H:%M:%SZ; }

# What tells whether a file was written since.
state_of() { stat -c '%i:%s:%y' "$1" 2>/dev/null | tr ' ' '_' || true; }

# The last step that metrics.jsonl has a whole line of.
last_step_written() {
  local step
  step="$(tail -n 2 "$folder/metrics.jsonl" 2>/dev/null |
    sed -n 's/^{"step":\([0-9]*\),.*}$/\1/p' | tail -n 1)"
  echo "${step:-0}"
}

# note_start RANKS [HOST...]: the hosts are those that are left out. Sets `start`.
note_start() {
  local left_out="" host
  mkdir -p "$folder"
  for host in "${@:2}"; do
    left_out+="${left_out:+,}$(json_text "$host")"
  done
  start=$(($(events start | wc -l) + 1))
  printf '{"event":"start","job":"%s","start":%d,"time":"%s","ranks":%s,"left_out":[%s],"log_bytes":%d,"metrics":"%s"}\n' \
    "$job_name" "$start" "$(now)" "$1" "$left_out" \
    "$(stat -c %s "$folder/log/rank_0/info.log" 2>/dev/null || echo 0)" \
    "$(state_of "$folder/metrics.jsonl")" >>"$folder/restarts.jsonl"
}

# ---- What has happened.

# Reads what the last start has left: from_step, the step that it went on after; last_step, the last
# that it finished; place, in words; log, what it has logged.
look_at_start() {
  local line bytes
  line="$(events start | tail -n 1)"
  bytes="$(member log_bytes <<<"$line")"
  began="$(member time <<<"$line")"
  log="$(tail -c "+$((bytes + 1))" "$folder/log/rank_0/info.log" 2>/dev/null || true)"
  from_step="$(sed -n 's/.*going on after step \([0-9]*\) with .*/\1/p' <<<"$log" | tail -n 1)"
  from_step="${from_step:-0}"
  last_step=$from_step
  if [[ "$(member metrics <<<"$line")" != "$(state_of "$folder/metrics.jsonl")" ]]; then
    last_step="$(last_step_written)"
  fi
  if ((last_step > from_step)); then
    place="after step $last_step"
  else
    last_step=$from_step
    place="before its first step"
    ((from_step == 0)) || place+=", which is step $((from_step + 1))"
  fi
}

# The first error that a rank has logged since the start; the lines of a message joined. Of the two
# forms of a log (training_config.log_format).
logged_error() {
  local file since
  since="$(date -d "$began" '+%Y-%m-%d %H:%M:%S')"
  for file in "$folder"/log/rank_*/error.log; do
    [[ ! -s "$file" ]] || awk -v since="$since" '
      /^\{"time":"/ {
        time = substr($0, 10, 10) " " substr($0, 21, 8)
        if (time < since || !match($0, /"message":"/)) next
        message = substr($0, RSTART + RLENGTH)
        sub(/"[^"]*$/, "", message)
        gsub(/\\n/, " ", message)
        print message
        exit
      }
      /^[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9] / { if (found) exit; found = ($1 " " $2 >= since) }
      found { sub(/^[0-9-]+ [0-9:.]+ error /, ""); printf "%s ", $0 }
      END { print "" }' "$file"
  done | sed 's/^ *//; s/ *$//; /^$/d' | head -n 1 || true
}

# reason_of CODE: in words, from what mpirun has said, ranks have logged, or the last line.
reason_of() {
  local words="" text
  [[ -z "$last_words" ]] || words="$(cat "$last_words" 2>/dev/null || true)"
  text="$(sed -n 's/.* Remote daemon: .* on node \(.*\)/the connection to host \1 was lost/p' <<<"$words")"
  [[ -n "$text" ]] || text="$(sed -n 's/.*process rank \([0-9]*\) .*on node \([^ ]*\) exited on signal \([0-9]*\) \(([^)]*)\).*/rank \1 on \2 was ended by signal \3 \4/p' <<<"$words")"
  if [[ -z "$text" && "$words" == *"KILLED BY SIGNAL"* ]]; then # as MPICH says it
    text="$(sed -n 's/.*RANK \([0-9]*\) PID .* RUNNING AT \([^ ]*\).*/rank \1 on \2/p' <<<"$words" | head -n 1)$(
      sed -n 's/.*KILLED BY SIGNAL: \([0-9]*\) \(([^)]*)\).*/ was ended by signal \1 \2/p' <<<"$words" | head -n 1)"
  fi
  if [[ -z "$text" ]] && (($1 > 128 && $1 <= 128 + 64)); then
    text="ended by signal $(($1 - 128))"
  fi
  [[ -n "$text" ]] || text="$(logged_error)"
  [[ -n "$text" ]] || text="$(sed '/^[- ]*$/d' <<<"$words" | tail -n 1)"
  text="${text:-exit code $1}"
  text="$(head -n 1 <<<"$text")"
  [[ "$text" != *"signal 9 "* ]] || text+=": by somebody, or for lack of memory"
  echo "${text:0:600}"
}

# judge CODE N [HOST...]: sets verdict (ended, stopped, input, again, repeats, worse, enough), reason,
# and resume_from, the checkpoint to go on with (True: the newest). The hosts are those that the start
# had and that do not answer any more. A verdict but `again` has its words in `why`.
judge() {
  local torn before
  resume_from=True cause=crash why=""
  look_at_start
  reason="$(reason_of "$1")"
  torn="$(sed -n 's/.*training_config\.resume_training: \(step_[0-9]*\).*/\1/p' <<<"$reason")"
  if (($# > 2)); then
    cause=host reason="no answer from ${*:3} any more ($reason)"
  fi
  before="$(events end | { grep -v '"cause":"unseen"' || true; } | tail -n 1)"
  verdict=again
  if [[ $1 == 0 ]]; then
    verdict=ended cause=none reason="finished"
    if [[ "$log" == *"stopped on request after "* ]]; then
      verdict=stopped reason="stopped on request"
    fi
  elif [[ $1 == 2 && -n "$torn" ]]; then  # the newest checkpoint is not what was written
    cause=checkpoint resume_from="$torn"
  elif [[ $1 == 2 ]]; then
    verdict=input cause=none why="bad input is not started again"
  elif [[ "$reason" == *"the run ends worse than it began"* ]]; then
    verdict=worse cause=none why="the run has reached its end"
  elif [[ $cause == crash && "$(member cause <<<"$before")" == crash && -n "$before" &&
    "$(member place_key <<<"$before")" == "$(place_key)" ]]; then
    verdict=repeats why="this is the second time in a row that it ends $place; before: $(
      reason_in <<<"$before")"
  fi
  if [[ $verdict == again && -n "$2" && "$(events end | grep -c '"verdict":"again"')" -ge "$2" ]]; then
    verdict=enough why="it was started again $2 times already"
  fi
}

# Crashes with the same key are the same one.
place_key() { ((last_step > from_step)) && echo "$last_step" || echo start; }

reason_in() { sed -n 's/.*"reason":"\(.*\)"}$/\1/p' | sed 's/\\\(["\\]\)/\1/g'; }

# Of the start before: how far it had got beyond where the last one began.
computed_twice() {
  local before
  before="$(events end | tail -n 1 | member last_step)"
  echo "$((${before:-0} > from_step ? before - from_step : 0))"
}

# note_end CODE: after judge.
note_end() {
  local seconds
  seconds=$(($(date +%s) - $(date -d "$began" +%s)))
  printf '{"event":"end","job":"%s","start":%d,"time":"%s","seconds":%d,"exit_code":%s,"from_step":%d,"last_step":%d,"computed_twice":%d,"place_key":"%s","cause":"%s","verdict":"%s","reason":%s}\n' \
    "$job_name" "$start" "$(now)" "$seconds" "$1" "$from_step" "$last_step" "$(computed_twice)" \
    "$(place_key)" "$cause" "$verdict" "$(json_text "$reason")" >>"$folder/restarts.jsonl"
}

# A table of all starts of the job.
summary() {
  local line again=0 last=0 ranks
  say "$(events end | wc -l) starts:"
  while IFS= read -r line; do
    again=$((again + $(member computed_twice <<<"$line")))
    last="$(member last_step <<<"$line")"
    ranks="$(events start | grep -F "\"start\":$(member start <<<"$line")," | member ranks)"
    printf '  %2d  %s  %s ranks  steps %d to %d  %s\n' "$(member start <<<"$line")" \
      "$(member time <<<"$line")" "$ranks" "$(($(member from_step <<<"$line") + 1))" "$last" \
      "$(reason_in <<<"$line")" >&2
  done < <(events end)
  say "$again steps were computed twice, the last one is $last; see $folder/restarts.jsonl"
}

# ---- pretrain_gpt.sh --restarts N. From there: words, program, restarts, run_ranks, choose_ranks, given.

# value KEY: of training_config in the resolved configuration.
value() {
  sed -n "/^training_config:/,/^[a-z]/s/^  $1: *//p" <<<"$resolved" | sed 's/  #.*//; s/^"\(.*\)"$/\1/; s/^'"'"'\(.*\)'"'"'$/\1/' | head -n 1
}

# What is asked for beside the configuration, and the configuration itself. Bad input ends here.
learn_run() {
  local word skips=false
  for word in --evaluate --verify_layout --dry_run --plan --plot --report --plot_schedule --print_config \
    --convert_config --which_data --which_steps --find_fault --prove --replay --twice --op_error --lr_zero; do
    ! given "$word" || die "--restarts is for a training, and $word is none: leave one of them out"
  done
  resolved="$("$program" "${words[@]}" --print_config)" || exit $?
  folder="$(value output_dir)"
  if [[ "$(value save_interval)$(value save_interval_seconds)$(value save_interval_minutes)" == nullnullnull ]]; then
    say "no checkpoint is saved before the end, so a restart begins anew; set training_config.save_interval"
  fi
  asked_flags=() plain=()
  for word in "${words[@]}"; do
    if [[ $skips == true ]]; then
      skips=false
    elif [[ "$word" == --overwrite || "$word" == --replace ]]; then
      asked_flags+=("$word")
    elif [[ "$word" =~ ^--(training_config[._])?resume[-_]training(=.*)?$ ]]; then
      [[ -n "${BASH_REMATCH[2]}" ]] || skips=true
    else
      plain+=("$word")
    fi
  done
}

# Sets start_words. Until the first start has made the folder its own they are those that were given.
choose_words() {
  local folder_is_ours=false
  [[ "$(state_of "$folder/config.yaml")" == "$config_before" ]] || folder_is_ours=true
  start_words=("${words[@]}")
  if [[ -n "$layout_file" ]]; then
    start_words=(--config_path "$layout_file" "${asked_flags[@]}")
  fi
  if [[ $folder_is_ours == true ]]; then
    start_words=("${plain[@]}")
    [[ -z "$layout_file" ]] || start_words=(--config_path "$layout_file")
    if compgen -G "$folder/checkpoint/step_*" >/dev/null || [[ -z "$(value load_checkpoint)" ||
      "$(value resume_training)" == True ]]; then
      start_words+=(--set "training_config.resume_training=$resume_from")
    else
      start_words+=(--overwrite)  # else it would go on with what load_checkpoint names
    fi
  fi
  given --run_cmd ||
    start_words+=(--run_cmd "pretrain_gpt.sh --restarts $restarts: start $(($(events start | wc -l) + 1)), $ranks ranks x $threads threads")
}

# pause SECONDS: a signal ends it.
pause() {
  local nap
  (($1 > 0)) || return 0
  sleep "$1" &
  nap=$!
  wait "$nap" || true
  kill "$nap" 2>/dev/null || true
}

host_names() { sed -E 's/#.*//; s/^[[:space:]]+//; /^$/d; s/[[:space:]].*//' "$1"; }

# answers HOSTS-OPTION...: whether mpirun can start a process there in time.
answers() {
  local asked
  # With a session of its own, so that Ctrl-C does not look like a host that is gone.
  setsid timeout -k 5 "$probe_seconds" "$mpirun" "${root_option[@]}" "$@" true >/dev/null 2>&1 </dev/null &
  asked=$!
  wait "$asked" || {
    kill "$asked" 2>/dev/null || true
    return 1
  }
}

# probe HOST...: sets missing, those of them that do not answer.
probe() {
  local host asked=()
  missing=()
  for host in "$@"; do
    (answers -n 1 --host "$host") &
    asked+=("$!:$host")
  done
  for host in "${asked[@]}"; do
    wait "${host%%:*}" || missing+=("${host#*:}")
  done
}

# The same for all hosts; many are asked together first, as each takes an mpirun of its own.
probe_hosts() {
  local hosts=()
  missing=()
  [[ -n "$all_hosts" ]] || return 0
  mapfile -t hosts < <(host_names "$all_hosts")
  [[ ${#hosts[@]} -le 16 || $mpi != openmpi ]] || ! answers --hostfile "$all_hosts" --map-by ppr:1:node || return 0
  probe "${hosts[@]}"
}

# newly_missing: those that the last start still had.
newly_missing() {
  local host
  for host in "${missing[@]}"; do
    [[ " ${left_out[*]} " == *" $host "* ]] || echo "$host"
  done
}

# Chooses hosts, ranks and layout of the next start. 1 if there are none, with the reason in plan_fault.
choose_layout() {
  local host names=() text file
  layout_file="" left_out=("${missing[@]}") RANKS=$all_ranks HOSTFILE="$all_hosts"
  if ((${#missing[@]} > 0)); then
    for host in "${missing[@]}"; do
      names+=(-e "^[[:space:]]*${host//./\\.}([[:space:]]|\$)")
    done
    grep -vE "${names[@]}" "$all_hosts" >"$work/hosts" || true
    HOSTFILE="$work/hosts"
    RANKS="$(slots_of "$HOSTFILE")"
    RANKS="${RANKS:-0}"
    ((RANKS < all_ranks)) || RANKS=$all_ranks
  fi
  if ((RANKS == 0)); then
    plan_fault="no host of $all_hosts answers"
    return 1
  fi
  if ((RANKS < all_ranks)); then
    mkdir -p "$folder/restarts"
    file="$folder/restarts/layout_$(($(events start | wc -l) + 1)).yaml"
    rm -f "$file"
    printf '%s\n' "$resolved" >"$folder/restarts/original.yaml"
    if ! text="$("$program" --config_path "$folder/restarts/original.yaml" --plan "$RANKS" \
      --ranks "$all_ranks" --to "$file" 2>&1)"; then
      plan_fault="$RANKS ranks are left, and no layout fits them: $(tail -n 1 <<<"$text")"
      return 1
    fi
    RANKS="$(sed -n 's/^plan: ranks=\([0-9]*\).*/\1/p' <<<"$text" | tail -n 1)"
    layout_file="$file"
    say "goes on with $RANKS of $all_ranks ranks, without ${missing[*]}, in the layout of $file"
  fi
  choose_ranks
}

# Waits, longer each time in which the run gets no further, and finds hosts and a layout: 1 if there
# are none, or somebody wants it to end.
prepare_next() {
  if ((last_step > best_step)); then
    best_step=$last_step delay=$first_delay
  fi
  say "start $start: $reason, $place; starts again in $delay s ($(events end |
    grep -c '"verdict":"again"') of $restarts)"
  while true; do
    pause "$delay"
    delay=$((delay * 2 > 300 ? 300 : delay * 2))
    ((signals == 0)) || return 1
    probe "${missing[@]}" # one that was started again may be back
    ((signals == 0)) || return 1
    ! choose_layout || return 0
    ((signals == 0)) || return 1
    note_start 0 "${missing[@]}"
    cause=host reason="$plan_fault" verdict=again from_step=$last_step
    began="$(now)"
    [[ "$(events end | grep -c '"verdict":"again"')" -lt "$restarts" ]] || verdict=enough
    note_end null
    if [[ $verdict == enough ]]; then
      say "not started again: $plan_fault; it was started again $restarts times already"
      return 1
    fi
    say "$plan_fault; tries again in $delay s"
  done
}

begin_restarts() {
  learn_run
  job_name="${TAPESTRY_JOB:-${SLURM_JOB_ID:+slurm-$SLURM_JOB_ID}}"
  job_name="${job_name:-$(hostname)-$$-$(date +%s)}"
  close_unseen
  work="$(mktemp -d)"
  trap 'rm -rf "$work"' EXIT
  first_delay="${RESTART_DELAY:-10}" probe_seconds="${PROBE_SECONDS:-30}"
  [[ "$first_delay" =~ ^[0-9]{1,5}$ ]] || die "RESTART_DELAY is '$first_delay', must be a number of seconds"
  positive PROBE_SECONDS "$probe_seconds"
  root_option=()
  [[ $EUID != 0 || $mpi != openmpi ]] || root_option=(--allow-run-as-root)
  all_hosts="${HOSTFILE:-}" all_ranks=$ranks layout_file="" resume_from=True
  missing=() left_out=() best_step=-1 delay=$first_delay
  config_before="$(state_of "$folder/config.yaml")"
}

# Starts the run until it ends for good; `code` is then that of its last start.
run_with_restarts() {
  begin_restarts
  while true; do
    choose_words
    note_start "$ranks" "${left_out[@]}"
    last_words="$work/last_words"
    export TAPESTRY_JOB="$job_name" TAPESTRY_JOB_START="$start"
    job_options=(-x TAPESTRY_JOB -x TAPESTRY_JOB_START)
    run_ranks "${start_words[@]}"
    missing=()
    [[ $code == 0 || $code == 2 || $signals -gt 0 ]] || probe_hosts
    mapfile -t lost < <(newly_missing)
    judge "$code" "$restarts" "${lost[@]}"
    [[ $signals == 0 || $code == 0 ]] || verdict=stopped why="it was told to end"
    note_end "$code"
    if [[ $verdict != again ]]; then
      [[ -z "$why" ]] || say "not started again: $reason, $place; $why"
      break
    fi
    prepare_next || {
      ((signals == 0)) || code=$((128 + signal))
      break
    }
  done
  [[ "$(events end | wc -l)" == 1 ]] || summary
}

# ---- The commands.

usage_of_commands() {
  sed -n '2,/^$/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
}

bad_command() {
  echo "pretrain_gpt_restarts.sh: $*; --help shows the commands" >&2
  exit 2
}

# A start whose end nobody has seen: the batch system has ended all of it, or the node is gone. That
# is no crash of the program.
close_unseen() {
  local starts ends
  starts="$(events start | wc -l)" ends="$(events end | wc -l)"
  ((starts > ends)) || return 0
  judge 255 ""
  start=$starts cause=unseen verdict=unseen reason="nobody has seen its end: preempted, or the node was lost"
  [[ "$log" != *"stopped on request after "* ]] || reason="stopped on request"
  note_end null
}

run_command() {
  local limit=""
  [[ "${1:-}" != -h && "${1:-}" != --help ]] || {
    usage_of_commands
    exit 0
  }
  (($# >= 2)) || bad_command "expected begin OUTPUT, or end OUTPUT CODE"
  folder="$2" last_words=""
  job_name="${TAPESTRY_JOB:-${SLURM_JOB_ID:+slurm-$SLURM_JOB_ID}}"
  [[ -n "$job_name" ]] || bad_command "neither SLURM_JOB_ID nor TAPESTRY_JOB says which job this is"
  case "$1" in
    begin)
      (($# == 2)) || bad_command "begin takes OUTPUT alone"
      close_unseen
      note_start "${SLURM_NTASKS:-null}"
      ;;
    end)
      [[ "${3:-}" =~ ^[0-9]{1,3}$ ]] || bad_command "CODE is '${3:-}', expected the exit code of the run"
      if (($# > 3)); then
        [[ $# == 5 && "$4" == --restarts && "$5" =~ ^[0-9]{1,6}$ ]] || bad_command "after CODE only --restarts N"
        limit="$5"
      fi
      start="$(events start | wc -l)"
      ((start > 0)) || bad_command "there was no begin for the job $job_name in $folder"
      judge "$3" "$limit"
      [[ $cause != checkpoint ]] || verdict=input why="its message says which checkpoint is whole"
      note_end "$3"
      say "start $start: $reason, $place; ${why:-$([[ $verdict == again ]] && echo "may start again" || echo "done")}"
      [[ $verdict == again ]] || exit 3
      ;;
    *) bad_command "there is no command '$1'" ;;
  esac
}

if [[ "${BASH_SOURCE[0]}" == "$0" ]]; then
  set -euo pipefail
  run_command "$@"
fi
