#!/usr/bin/env bash
# An agent is suspended, or its trainers, or both, alone and with the network away: for less than the limits nothing comes of it,
# and for longer never do two sets of one job take steps at a time. Five hosts side by side:
#   a  the agent, and its network: its trainers are awake, and stand still by themselves
#   b  all of them, and the network
#   c  the agent alone: its trainers are heard, and train on
#   d  the trainers alone: they are missed, and others start in their place
#   e  the trainers, and the network: their agent says on the disk that they live
# Which step a rank has applied is read from the page that it shares with its agent, whoever sleeps. It is written there each
# tenth of a second: a process that was suspended may have two more, or be amid one that is committed.
#   GRADSYNC_RUNS=all   the lines are not closed but silent, and all of b is suspended alone, too
. "$(dirname "$0")/network.sh"

# Where the page is, by its name; the step lies behind rank, generation and world size.
step_of() { # PID
  local at
  at=$(sed -n '/gradsync-launch/{s/-.*//p;q}' "/proc/$1/maps" 2>/dev/null)
  [ -z "$at" ] || dd if="/proc/$1/mem" bs=8 count=1 iflag=skip_bytes skip=$((0x$at + 16)) 2>/dev/null | od -An -td8 | tr -d ' \n'
}
steps_of() { for pid in ${ranks_of[$1]}; do step_of "$pid"; echo; done | xargs; }  # HOST
lives() { for pid in ${ranks_of[$1]}; do kill -0 "$pid" 2>/dev/null || return 1; done; }
are_gone() { for pid in ${ranks_of[$1]}; do ! kill -0 "$pid" 2>/dev/null || return 1; done; }
set_of() { job_field "${jobs[$1]}" '"\(.generation) \(.restarts) \(.lost_steps)"'; }
generation_of() { job_field "${jobs[$1]}" .generation; }
gets_on() { # HOST
  local step
  step=$(job_field "${jobs[$1]}" .progress.step)
  wait_for 60 "more steps of $1" step_at_least "${jobs[$1]}" $((step + 10))
}
has_successors() { [ "$(generation_of "$1")" -gt "${first_of[$1]}" ] && job_is "${jobs[$1]}" running; }
have_left() { for name; do grep -q "worker disconnected.*worker=$name\$" "$run/logs/centre.log" || return 1; done; }
# Their connections are answered with a reset, and then nothing passes.
close_lines() {
  for name; do
    local n=${link_of[$name]}
    ip netns exec "${host_of[$name]}" iptables -w -A INPUT -i "r$n" -p tcp --tcp-flags RST RST -j ACCEPT
    ip netns exec "${host_of[$name]}" iptables -w -A INPUT -i "r$n" -p tcp -j REJECT --reject-with tcp-reset
  done
  wait_for 60 "closed lines" have_left "$@"
  cut "$@" both
}
saved_by_first() { find "$run/data/checkpoints/${jobs[$1]}" -name MANIFEST.json | xargs -r cat | jq -s --argjson first "${first_of[$1]}" 'map(select(.generation == $first) | .position.step) | max // 0'; }

centre "$run/data"
declare -A jobs ranks_of first_of agents ranks=([a]=2 [b]=1 [c]=1 [d]=1 [e]=1)
# Who saves finds out by that; those of a do not.
declare -A cadence=([a]=1000000 [b]=20 [c]=20 [d]=20 [e]=20)
for name in a b c d e; do
  host "$name-host"
  at=$name-host agent "$name" "${ranks[$name]}"
  agents[$name]=$worker_pid
  submit "$(mlp_job "$name" 100000 "${ranks[$name]}" ',"exact":true,"debug":{"step_delay_ms":40},"checkpoint":{"every_steps":'"${cadence[$name]}"'}')"
  jobs[$name]=$job
  wait_for 60 "the ranks of $name" job_is "$job" running
  ranks_of[$name]=$(trainer_pids "$job" | xargs)
  first_of[$name]=$(generation_of "$name")
done
for name in a b c d e; do wait_for 60 "steps of $name" step_at_least "${jobs[$name]}" 10; done

claim "for less than the limits: all train on as they were"
cut a b e both
kill -STOP "${agents[a]}" "${agents[b]}" "${agents[c]}"
# shellcheck disable=SC2086  # words
kill -STOP ${ranks_of[b]} ${ranks_of[e]}
sleep_ms $(($(timing_ms agent_dead) * 5 / 6))
# shellcheck disable=SC2086  # words
kill -CONT "${agents[a]}" "${agents[b]}" "${agents[c]}" ${ranks_of[b]} ${ranks_of[e]}
heal
for name in a b c d e; do
  wait_for 60 "worker $name" worker_is "$name" connected
  gets_on "$name"
  same "$(set_of "$name")" "${first_of[$name]} 0 0" "generation, restarts and lost steps of $name"
  lives "$name" || fail "a rank of $name has ended"
done

claim "for longer: whoever is not led by anybody stands still before others take its place"
cut e both  # before its ranks sleep: where their agent is heard they are missed, as those of d
# shellcheck disable=SC2086  # words
kill -STOP ${ranks_of[d]} ${ranks_of[e]}
if [ -n "${GRADSYNC_RUNS:-}" ]; then cut a b both; else close_lines a b; fi
kill -STOP "${agents[a]}" "${agents[b]}" "${agents[c]}"
# shellcheck disable=SC2086  # words
kill -STOP ${ranks_of[b]}
wait_for 60 "a verdict on those that sleep while their agent is heard" has_successors d
are_gone d || fail "a trainer of d is left"
agent spare 3
spare=$worker_pid
for name in a b; do wait_for 180 "another set of $name" has_successors "$name"; done
stood_a=$(steps_of a) stood_b=$(steps_of b)
declare -A saved=([a]=$(saved_by_first a) [b]=$(saved_by_first b))  # some of which go meanwhile: there are newer ones
lives a && lives b || fail "the first set is not there any more"
gets_on a
gets_on b
same "$(steps_of a)/$(steps_of b)" "$stood_a/$stood_b" "steps of the first sets beside those of the second"

claim "an agent that sleeps while its trainers are heard is no reason for anything"
gets_on c
same "$(set_of c)" "${first_of[c]} 0 0" "generation, restarts and lost steps of c"

claim "trainers that sleep behind a cut are not replaced while their agent says that they live"
same "$(set_of e)" "${first_of[e]} 0 0" "generation, restarts and lost steps of e"

claim "who wakes up takes no step, saves nothing and ends"
# Trainers first: nobody tells them anything yet.
# shellcheck disable=SC2086  # words
kill -CONT ${ranks_of[b]}
sleep 2
same "$(steps_of a)" "$stood_a" "steps of a"
[ "$(steps_of b)" -le $((stood_b + 3)) ] || fail "b woke up before its agent and went on from step $stood_b to $(steps_of b)"
stood_b=$(steps_of b)
kill -CONT "${agents[a]}" "${agents[b]}"
# Each word is of one rank, while it lives.
is_further() { for step in $(steps_of "$1"); do [ "$step" -le "$2" ] || return 0; done; return 1; }
until_gone=$((SECONDS + 120))
until are_gone a && are_gone b; do
  ! is_further a "${stood_a% *}" && ! is_further b "$stood_b" || fail "steps of those that woke up: $(steps_of a), $(steps_of b) behind $stood_a, $stood_b"
  [ $SECONDS -lt $until_gone ] || fail "the first sets do not end"
done
# shellcheck disable=SC2086  # words
kill -CONT "${agents[c]}" ${ranks_of[e]}
heal
for name in a b; do [ "$(saved_by_first "$name")" -le "${saved[$name]}" ] || fail "the first set of $name has saved behind the second"; done
for name in a b c d e; do wait_for 60 "worker $name" worker_is "$name" connected; done
for name in a b c d; do
  gets_on "$name"
  [ "$name" = c ] || same "$(job_field "${jobs[$name]}" .restarts)" 1 "restarts of $name"
done
wait_for 60 "e" job_is "${jobs[e]}" running
gets_on e

claim "the bytes are those of one set"
for name in a b c d e; do request POST "/v1/jobs/${jobs[$name]}/stop"; done
for name in a b c d e; do await "${jobs[$name]}" cancelled 60; done
# The hosts do not reach each other: one is left.
kill -TERM "${agents[b]}" "${agents[c]}" "${agents[d]}" "${agents[e]}" "$spare"
is_alone() { get /v1/workers | jq -e '[.items[] | select(.connected) | .id] == ["a"]'; }
wait_for 60 "one worker" is_alone
for name in a b; do
  disturbed=$(tensors_of "${jobs[$name]}")
  submit "$(mlp_job alone "$(job_field "${jobs[$name]}" .progress.step)" "${ranks[$name]}" ',"exact":true')"
  await "$job" succeeded 60
  same "$disturbed" "$(tensors_of "$job")" "tensors of $name"
done
