#!/usr/bin/env bash
# A target under libFuzzer until it finds nothing new: at least ten rounds of a million inputs, each round going on from what the ones
# before have found, until a round brings no new edge. What was found is beside the corpus, which stays small.
#   guided.sh FUZZER CORPUS_DIR     GRADSYNC_FUZZ_ROUND: inputs a round, 1000000 unless given
# FUZZER is a fuzz_*_live of the preset fuzz (clang). An input that ends the process is in crash-… here.
set -euo pipefail
fuzzer=${1:?names a fuzzer} corpus=${2:?names its corpus}
inputs=${GRADSYNC_FUZZ_ROUND:-1000000} least=10 most=200
found=$(mktemp -d)
trap 'rm -rf "$found"' EXIT
edges_in() { sed -n "s/.*$1.* cov: \([0-9]*\) .*/\1/p" "$found/log" | tail -n 1; }
most_edges=0
mkdir "$found/inputs"
cp "$corpus"/* "$found/inputs/"
for round in $(seq $most); do
  "$fuzzer" -runs="$inputs" -max_len=4096 -seed="$round" -artifact_prefix=./ "$found/inputs" >"$found/log" 2>&1 || { tail -n 40 "$found/log"; exit 1; }
  before=$(edges_in INITED) after=$(edges_in DONE)
  if [ -z "$before" ] || [ -z "$after" ]; then echo "$fuzzer tells no edges"; tail -n 5 "$found/log"; exit 1; fi
  echo "round $round: $before to $after edges, $(find "$found/inputs" -type f | wc -l) inputs kept"
  # By what all rounds before have come to: the inputs that are kept take other edges each time where a hash is drawn.
  if [ "$round" -ge $least ] && [ "$after" -le "$most_edges" ]; then echo "passed: the last $inputs inputs brought nothing new"; exit; fi
  [ "$after" -le "$most_edges" ] || most_edges=$after
done
echo "still new edges after $most rounds"
exit 1
