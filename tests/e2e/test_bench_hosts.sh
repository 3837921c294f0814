#!/usr/bin/env bash
# `gradsync bench allreduce` where two of the workers are of one host and the third is of another: sums go by the network.
. "$(dirname "$0")/network.sh"
centre "$run/data"
route_all
join a
at=on-a agent a2 1
join b

claim "two workers of one host and one of another add up"
adds_up() {
  gradsync bench allreduce -o json >"$run/bench.json" 2>"$run/err" || true
  jq -e '.sums | .workers == ["a", "a2", "b"] and .backend == "net" and (.error | not) and all(.sizes[]; .num_wrong == 0)' "$run/bench.json" >/dev/null
}
adds_up || adds_up || fail "$(jq -c .sums "$run/bench.json") $(cat "$run/err")"
