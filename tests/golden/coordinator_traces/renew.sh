#!/usr/bin/env bash
# After a decision was changed on purpose: the traces expect from now on what the coordinator says today.
#   renew.sh TEST_TRACES [FILE…]    (default: all)
# Twice: the second time drops what came back of writes that are not made any more.
# First look at what TEST_TRACES shows, and say in the commit why each kind of difference is right. A run that goes another way
# from there on has to be recorded again: what came in no longer fits to what went out.
set -euo pipefail
test=$1
shift
[ $# -gt 0 ] || set -- "$(dirname "$0")"/*.jsonl.gz
for file in "$@"; do
  "$test" --write "$file" "${file%.gz}"
  gzip -9nf "${file%.gz}"
done
