#!/usr/bin/env bash
# Four hosts, of which two reach each other only by a slow way: the ranks there add little of each bucket, the others more, and a
# step is quicker. The plan says why, the bytes are those of the job that shared equally, and a job whose ways are equal shares so.
command -v tc >/dev/null || [ -x /usr/sbin/tc ] || { echo "SKIP: no tc"; exit 77; }
. "$(dirname "$0")/network.sh"
PATH=$PATH:/usr/sbin:/sbin

# A bridge to which each host has 400 Mbit/s; the way between the first two is a line of its own.
host middle
ip -n middle link add bridge type bridge
ip -n middle link set bridge up
names=(a b c d)
for i in 0 1 2 3; do
  host "on-${names[i]}"
  ip -n middle link add "port$i" type veth peer name data netns "on-${names[i]}"
  ip -n middle link set "port$i" master bridge up
  ip -n "on-${names[i]}" addr add "10.79.0.$((i + 1))/24" dev data
  ip -n "on-${names[i]}" link set data up
  tc -n "on-${names[i]}" qdisc add dev data root tbf rate 400mbit burst 128kb latency 50ms 2>/dev/null || skip "no tc tbf"
done
ip link add slow netns on-a type veth peer name slow netns on-b
# slow_way RATE: from now on the two reach each other by it; nothing: over the bridge.
slow_way() {
  local end rate=${1:-}
  for end in "on-a 2" "on-b 1"; do
    # shellcheck disable=SC2086  # two words
    set -- $end
    ip -n "$1" route del "10.79.0.$2/32" 2>/dev/null || true
    [ -n "$rate" ] || continue
    ip -n "$1" link set slow up
    tc -n "$1" qdisc replace dev slow root tbf rate "$rate" burst 64kb latency 50ms
    ip -n "$1" route add "10.79.0.$2/32" dev slow
  done
}
# Who is asked for an address that is another interface's answers, too.
for name in a b; do
  ip netns exec "on-$name" sh -c 'for f in /proc/sys/net/ipv4/conf/*/rp_filter; do echo 0 >"$f"; done' 2>/dev/null || true
  ip netns exec "on-$name" sh -c 'for f in /proc/sys/net/ipv4/conf/*/arp_ignore; do echo 0 >"$f"; done' 2>/dev/null || true
done

centre "$run/data"
for i in 0 1 2 3; do at=on-${names[i]} agent "${names[i]}" 1 --data-address "10.79.0.$((i + 1))"; done

# 1.2 million parameters: 4.9 MB of gradients.
job_of() { # NAME STEPS
  printf '{"name":"%s","world":{"min":4,"max":4,"threads_per_rank":1},"model":{"kind":"mlp","mlp":{"dims":[128,1024,1024,10]}},
    "data":{"kind":"synthetic","micro_batch":4},"steps":{"target":%s},"reducer":{"backend":"net"}}' "$1" "$2"
}
plan() { get "/v1/jobs/$job/plan" | jq -r "$1"; }
is() { [ "$(plan "$1" 2>/dev/null)" = true ]; }

claim "where all ways are equal, all add as much"
submit "$(job_of equal 60)"
await "$job" succeeded 120
is '.link.pairs | length == 6' || fail "pairs: $(plan .link.pairs)"
# On a busy machine chance may make one quicker that adds somewhat less.
is '(.link.shares // [1]) | min > 0.12' || fail "shares: $(plan .link)"
wanted=$(tensors_of "$job")

claim "who reach each other slowly add little, and the plan says why"
slow_way 20mbit
submit "$(job_of slow 60)"
await "$job" succeeded 240
worker_of() { get "/v1/jobs/$job/workers" | jq -r ".items[] | select(.rank == $1) | .worker"; }
slow=()
for rank in 0 1 2 3; do case $(worker_of "$rank") in a | b) slow+=("$rank") ;; esac; done
is "(.link.shares | length == 4 and (add - 1 | fabs) < 0.001) and (.link.shares[${slow[0]}] < 0.15) and (.link.shares[${slow[1]}] < 0.15)" ||
  fail "shares of ranks ${slow[*]}: $(plan .link)"
is ".link.shares_why | test(\"between ranks ${slow[0]} \") and test(\" and ${slow[1]} \")" || fail "why: $(plan .link.shares_why)"
why=$(plan .link.shares_why)
echo "$why"
gradsync plan "$job" >"$run/plan.said" || fail "gradsync plan"
grep -qF -- "$why" "$run/plan.said" || fail "gradsync plan says: $(cat "$run/plan.said")"
# By 2.7 by the rates (decision 390); a busy machine leaves less of it.
gain=$(plan .link.shares_why | sed -n 's/.* took \([0-9.]*\) s, and \([0-9.]*\) with.*/\1 \2/p' | awk '{ printf "%.2f", $2 / $1 }')
echo "a sum is $gain times quicker; a step takes $(plan .link.step_seconds) s"
awk -v gain="$gain" 'BEGIN { exit !(gain > 1.5) }' || fail "a sum is $gain times quicker"

claim "and the bytes are the same"
same "$(tensors_of "$job")" "$wanted" "the state"

claim "the next generation looks anew"
slow_way
submit "$(job_of whole 40)"
await "$job" succeeded 120
is '(.link.shares // [1]) | min > 0.12' || fail "shares: $(plan .link)"
