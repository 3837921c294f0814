#!/usr/bin/env bash
# What tests/gpu/steps.sh promises: failures first, a lost device ends the run, no step is starved, families run side by side.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
fail() { echo "FAILED: $*" >&2; exit 1; }
answers=1
device_answers() { [ $answers -eq 1 ]; }
# shellcheck source=tests/gpu/steps.sh
. tests/gpu/steps.sh

started=$SECONDS budget=100 steps_to_come=5
granted=$(grant 90)
if [ "$granted" -gt 40 ] || [ "$granted" -lt 30 ]; then fail "of 100 s, with 5 steps to come, $granted are granted"; fi
[ "$(grant 7)" = 7 ] || fail "more is granted than was asked for"
budget=30
granted=$(grant 90)
if [ "$granted" -lt 10 ] || [ "$granted" -gt 12 ]; then fail "where there is too little one step has $granted of 30 s"; fi
steps_to_come=0
[ "$(grant 90)" -ge 28 ] || fail "the last step does not get what is left: $(grant 90)"

# Each step of a run hangs until its limit: each has had its least, all together no more than there is. By a clock that only
# the steps move.
(
  unset SECONDS
  # shellcheck disable=SC2317
  limited() { SECONDS=$((SECONDS + $1)); least=$(($1 < least ? $1 : least)); return 124; }
  for budget in 270 360 525; do
    SECONDS=0 started=0 steps_to_come=21 least=1000
    for i in {1..21}; do run "hangs $i" $((60 + i * 10)) true >/dev/null 2>&1; done
    [ $((SECONDS - started)) -le $budget ] || fail "steps that hang take $((SECONDS - started)) s of $budget"
    [ $least -ge $LEAST_SECONDS ] || fail "where all hang in $budget s one has $least s"
  done
) || exit

budget=100 steps_to_come=4
run passes 10 true >/dev/null || fail "a step that passes is taken for failed"
run breaks 10 bash -c 'echo fine; echo "FAIL sums differ"; echo "FAIL more"; echo end; exit 3' >"$logs/said"
head -n 2 "$logs/said" | grep -q 'FAIL sums differ' || fail "the first failure is not said first: $(cat "$logs/said")"
print_rows >"$logs/rows"
head -n 1 "$logs/rows" | grep -q '^FAILED breaks: exit code 3: FAIL sums differ$' || fail "the table begins with: $(head -n 1 "$logs/rows")"
[ "$failed" -eq 1 ] || fail "a failure is not remembered"
[ -s "$logs/breaks.log" ] || fail "a step has no log"

one_of() { bash -c 'echo "FAIL of $1"; [ "$1" != b ]' one_of "$1"; }
export -f one_of
# shellcheck disable=SC2016
run_beside families 10 2 a b c -- bash -c 'one_of "$1"' one >"$logs/said" && fail "a family that fails is passed over"
grep -q 'FAIL b: exit code 1' "$logs/said" || fail "which family failed is not said: $(cat "$logs/said")"
[ -s "$logs/of_c.log" ] || fail "families behind one that fails do not run"
# shellcheck disable=SC2016
run_beside "families that pass" 10 2 a c -- bash -c 'one_of "$1"' one >/dev/null || fail "families that pass are taken for failed"

answers=0
run "loses it" 10 false >/dev/null
run "comes behind" 10 touch "$logs/ran" && fail "a step passes without a device"
[ ! -e "$logs/ran" ] || fail "a step runs though the device is lost"
print_rows | head -n 1 | grep -q 'no longer answers, behind: loses it' || fail "a lost device is not said first: $(print_rows | head -n 1)"
echo "steps: as promised"
