# shellcheck shell=bash disable=SC2034,SC2154  # names that the caller sets or reads
# Steps of tests/gpu/run.sh and bench/gpu.sh: each with its limit and its log, and a table in which what failed stands first. The
# caller sets `budget` (seconds in all), `started` ($SECONDS at its begin), `logs`, `steps_to_come`, and has device_answers.
LEAST_SECONDS=12  # for each step to come, whatever those before it take
patience=${patience:-1}  # by what each limit grows: the software machine is slow, and so may be its host
rows=() failures=() failed=0 lost=0 child='' current=''
rm -f "$logs"/*.log "$logs"/*.txt  # an earlier run's
# Each is written at once too: what ends a run may be SIGKILL, behind which there is no table.
row() {
  rows+=("$(printf '%-34s %-8s %5s  %s' "$1" "$2" "$3" "${4:-}")")
  printf '%s\n' "${rows[-1]}" >>"$logs/rows.txt"
}
skip() { row "$1" skipped - "$2"; steps_to_come=$((steps_to_come - 1)); }

# grant LIMIT: seconds that a step may take, so that those behind it have their least; where there is not enough for that
# it has no more than its own least, and so has the next.
grant() {
  local left=$((budget - SECONDS + started)) kept=$((steps_to_come * LEAST_SECONDS)) most
  most=$((kept > 0 ? left - kept : left))
  [ "$most" -ge "$LEAST_SECONDS" ] || most=$((left < LEAST_SECONDS ? left : LEAST_SECONDS))
  echo $(($1 < most ? $1 : most))
}
# Steps that are none on this machine.
drop_steps() { steps_to_come=$((steps_to_come - $1)); }

# limited SECONDS LOG COMMAND…: not in the foreground, where bash hears of a signal only when the command is over. 124, 137: it
# was ended.
limited() {
  local seconds=$1 log=$2 code=0
  shift 2
  timeout -k 5 "$seconds" "$@" >"$log" 2>&1 &
  child=$!
  wait "$child" || code=$?
  child=''
  return "$code"
}
say_code() { # CODE LIMIT
  case $1 in
    124) echo "over its $2 s" ;;
    137) echo "killed: by the system, or over its $2 s and deaf to SIGTERM" ;;
    *) echo "exit code $1" ;;
  esac
}
# end_step: what still runs when a signal has come, which is that step's failure.
end_step() {
  [ -n "$child" ] || return 0
  kill "$child" 2>/dev/null
  wait "$child"
  child='' failed=1
  row "$current" FAILED - 'ended with this run, by a signal'
  failures+=("$current: ended with this run, by a signal")
}

# first_failure LOG: the line that says most: what a test or compute-sanitizer calls failed, else the last one.
first_failure() {
  grep -m 1 -E '^(FAIL|FAILED|\[  FAILED|\[  ERROR|ERROR: |gradsync.*: )|error:|level=error|^=+ (Invalid|Misaligned|Uninitialized|Error:|Barrier error|Program hit)' "$1" ||
    tail -n 1 "$1"
}
fail_step() { # NAME SECONDS WHY LOG
  failed=1
  row "$1" FAILED "$2" "$3"
  failures+=("$1: $3${4:+: $(first_failure "$4" | cut -c1-300)}")
  echo "FAILED $1: $3${4:+; $4 begins to fail with:}"
  [ -z "${4:-}" ] || { first_failure "$4"; echo "--- the end of $4"; tail -n 20 "$4"; }
  # Nothing behind a lost device says anything.
  device_answers || { lost=1; failures=("the device no longer answers, behind: $1" "${failures[@]}"); }
}

# run NAME LIMIT COMMAND…: 0 passed, else failed; its output goes to a log. There is a device here: who finds none (77)
# has failed too.
run() {
  local name=$1 code=0 since=$SECONDS limit why
  local log=$logs/${1//[^A-Za-z0-9]/_}.log
  steps_to_come=$((steps_to_come - 1))
  limit=$(grant $(($2 * patience)))
  shift 2
  [ "$lost" -eq 0 ] || { row "$name" "not run" - "the device is lost"; return 1; }
  [ "$limit" -gt 5 ] || { fail_step "$name" 0 "no time left"; return 1; }
  current=$name
  limited "$limit" "$log" "$@" || code=$?
  why=$(say_code $code "$limit")
  [ $code -eq 0 ] || { fail_step "$name" $((SECONDS - since)) "$why" "$log"; return 1; }
  row "$name" ok $((SECONDS - since)) "$(grep -E '^[0-9]+% tests passed|cases pass$' "$log" | tail -n 1)"
}

# run_beside NAME LIMIT JOBS WORD… -- COMMAND…: the command with each word, JOBS processes at a time, each with its log; one
# step, which fails with the first that does.
run_beside() {
  local name=$1 limit=$2 jobs=$3 words=()
  shift 3
  while [ "$1" != -- ]; do words+=("$1"); shift; done
  shift
  # shellcheck disable=SC2016
  run "$name" "$limit" bash -c "$(declare -f first_failure)"'
    logs=$1 jobs=$2 count=$3; shift 3
    words=("${@:1:count}"); shift "$count"
    rm -f "$logs/.failed"
    one() { local word=$1 log=$logs/of_$1.log; shift; "$@" "$word" >"$log" 2>&1 || { echo "FAIL $word: exit code $?: $(first_failure "$log")"; touch "$logs/.failed"; }; }
    for word in "${words[@]}"; do
      while [ "$(jobs -pr | wc -l)" -ge "$jobs" ]; do wait -n; done
      one "$word" "$@" &
    done
    wait
    [ ! -e "$logs/.failed" ]' beside "$logs" "$jobs" "${#words[@]}" "${words[@]}" "$@"
}

# What failed, then all.
print_rows() {
  [ ${#failures[@]} -eq 0 ] || { printf 'FAILED %s\n' "${failures[@]}"; echo; }
  printf '%-34s %-8s %5s  %s\n' name result secs note
  [ ${#rows[@]} -eq 0 ] || printf '%s\n' "${rows[@]}"
}
