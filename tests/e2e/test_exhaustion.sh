#!/usr/bin/env bash
# A coordinator that has no descriptor left, under a job: who asks is not answered, and that is all.
. "$(dirname "$0")/lib.sh"

start_coordinator main "$run/data"
start_worker agent 2
submit "$(mlp_job long 1000000 2 ',"debug":{"step_delay_ms":5},"checkpoint":{"every_steps":200},"restart":{"backoff_initial_seconds":0.1}')"
wait_for 60 "its steps" step_at_least "$job" 60

claim "without descriptors nobody is answered, and steps go on"
# Those that are open now stay; three more, and strangers hold these.
limit=$(prlimit --pid "$coordinator_pid" --nofile --output SOFT --noheadings | tr -d ' ')
prlimit --pid "$coordinator_pid" --nofile=$(($(ls "/proc/$coordinator_pid/fd" | wc -l) + 3)):
held=()
for _ in $(seq 12); do
  exec {one}<>"/dev/tcp/127.0.0.1/${server##*:}"
  held+=("$one")
done
nobody_is_answered() { ! curl -fsS -m 2 "$server/readyz"; }
wait_for 60 "a refusal" nobody_is_answered
newest() { find "$run/data/checkpoints/$job" -name MANIFEST.json | sort | tail -n 1; }
before=$(newest)
later() { [ "$(newest)" != "$before" ]; }
wait_for 60 "a checkpoint of meanwhile" later

claim "a rank that dies meanwhile is replaced, and nothing is lost"
kill -9 "$(trainer_pids "$job" | tail -n 1)"
for one in "${held[@]}"; do exec {one}>&-; done
prlimit --pid "$coordinator_pid" --nofile="$limit:"
answers() { curl -fsS -m 5 "$server/readyz"; }
wait_for 60 "an answer" answers
in_second_life() { [ "$(job_field "$job" .generation)" -ge 2 ] && [ "$(job_field "$job" .state)" = running ]; }
wait_for 60 "another generation" in_second_life
same "$(job_field "$job" .lost_steps)" 0 "lost steps"
step=$(job_field "$job" .progress.step)
wait_for 60 "more steps" step_at_least "$job" $((step + 50))

claim "what it could not write it has said, and not again and again"
said=$(grep -c 'curves not written.*Too many open files' "$run/logs/main.log" || true)
[ "$said" -ge 1 ] || fail "nothing was said of it"
[ "$said" -le 3 ] || fail "said $said times"
