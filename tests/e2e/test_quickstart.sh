#!/usr/bin/env bash
# deploy/quickstart.sh as a user runs it, with a build that exists and few steps: it ends well, shows what it promises
# and leaves nothing running; where the job cannot succeed it says so and fails.
. "$(dirname "$0")/lib.sh"
cd "$(dirname "$0")/../.."
export TMPDIR=$run GRADSYNC_BIN_DIR STEPS=30

# quickstart FILE: its output there, its exit code in $code.
quickstart() {
  code=0
  timeout 400 deploy/quickstart.sh >"$1" 2>&1 || code=$?
}
# Both programs are given the control address.
left_running() { pgrep -af -- "$(sed -nE 's/.*\(control (tcp:[^)]+)\).*/\1/p' "$1")"; }
says() { grep -aqE -- "$1" "$run/logs/tour.log" || fail "the tour does not say: $1"; }

claim the tour ends with a job that succeeded
HTTP_PORT=0 quickstart "$run/logs/tour.log"
same "$code" 0 "exit code of the tour"
says '^job [a-z0-9-]+: succeeded$'
says '^POST http://127.0.0.1:[1-9][0-9]*/v1/jobs → 201, job '

claim it shows training, a sample, losses, a checkpoint and metrics
sampled=$(sed -n '/^5\. What it learned/,/^6\. /p' "$run/logs/tour.log" | wc -c)
[ "$sampled" -gt 400 ] || fail "a sample of 400 bytes, and their headings, are $sampled bytes"
says '^loss: 1: [0-9.]+ .*30: [0-9.]+'
says '^step 30: step-0*30-[0-9a-f]+ \([1-9][0-9]+ bytes\)$'
says '^gradsync_job_step\{.*\} 30$'
says '^gradsync_job_loss\{'

claim the loss went down
first=$(sed -nE 's/^loss: 1: ([0-9.]+).*/\1/p' "$run/logs/tour.log")
last=$(sed -nE 's/^loss: .*[^0-9]30: ([0-9.]+)$/\1/p' "$run/logs/tour.log")
awk -v first="$first" -v last="$last" 'BEGIN { exit !(last > 0 && last < 0.8 * first) }' ||
  fail "loss $first at step 1, $last at step 30"

claim it leaves its data and no process behind
test -d "$run"/gradsync-quickstart.*/data/jobs || fail "no data of the job"
if left_running "$run/logs/tour.log"; then fail "these still run"; fi

claim it ends with an error when the job does
STEPS=0 HTTP_PORT=0 quickstart "$run/logs/refused.log"
[ "$code" -ne 0 ] || fail "the tour of a job without steps ends well"
grep -q '/steps/target' "$run/logs/refused.log" || fail "it does not say what was refused"
if left_running "$run/logs/refused.log"; then fail "these still run after the refusal"; fi
