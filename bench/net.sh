#!/bin/sh
# gradsync's all-reduce over TCP beside Gloo's own ring (bench/peer_gloo.cc, with libgloo-dev), in turns.
#
#   bench/net.sh [BUILD_DIR]      default build/release; needs a release build; namespaces need root
#   RANKS=2 ROUNDS=5 LEAST=1024 MOST=104857600 HOSTS=yes RATE=1gbit bench/net.sh
#
# HOSTS=yes: each rank in a network namespace of its own, over a bridge; RATE: what each of them may send (tbf). Otherwise
# loopback. Lower quartile over rounds; the ratio is that of the quartiles.
set -eu
cd "$(dirname "$0")/.."
build=${1:-build/release}
ranks=${RANKS:-2} rounds=${ROUNDS:-5} least=${LEAST:-1024} most=${MOST:-104857600} rate=${RATE:-}
work=$(mktemp -d)
hosts=bench$$-
cleanup() {
  for r in $(seq 0 $((ranks - 1))); do ip netns del "$hosts$r" 2>/dev/null || true; done
  ip netns del "${hosts}bridge" 2>/dev/null || true
  rm -rf "$work"
}
trap cleanup EXIT
c++ -O2 -I. -o "$work/gloo" bench/peer_gloo.cc -lgloo -pthread
if [ "${HOSTS:-}" = yes ]; then
  export BENCH_HOSTS="$hosts"
  ip netns add "${hosts}bridge"
  ip -n "${hosts}bridge" link add bridge type bridge
  ip -n "${hosts}bridge" link set bridge up
  for r in $(seq 0 $((ranks - 1))); do
    ip netns add "$hosts$r"
    ip -n "${hosts}bridge" link add "port$r" type veth peer name data netns "$hosts$r"
    ip -n "${hosts}bridge" link set "port$r" master bridge up
    ip -n "$hosts$r" addr add "10.78.0.$((r + 1))/24" dev data
    ip -n "$hosts$r" link set data up
    [ -z "$rate" ] || tc -n "$hosts$r" qdisc add dev data root tbf rate "$rate" burst 256kb latency 50ms
  done
fi
for round in $(seq "$rounds"); do
  "$build/bin/bench_comm" --backend net --ranks "$ranks" --rounds 1 --least "$least" --most "$most" --pin |
    awk '$1 != "#" { print "net", $1, $2, $9 }'
  "$work/gloo" "$ranks" 1 "$least" "$most" | awk '{ print "gloo", $1, $2, 0 }'
done >"$work/results"
awk '
  function quartile(name, bytes,    n, i, j, v, swap) {
    n = count[name, bytes]
    for (i = 1; i <= n; i++) v[i] = time[name, bytes, i]
    for (i = 2; i <= n; i++)
      for (j = i; j > 1 && v[j] < v[j - 1]; j--) { swap = v[j]; v[j] = v[j - 1]; v[j - 1] = swap }
    return v[int((n - 1) / 4 + 1.5)]
  }
  { if (!($2 in seen)) { seen[$2] = 1; sizes[++num] = $2 } time[$1, $2, ++count[$1, $2]] = $3; wrong[$2] += $4 }
  END {
    printf "%12s %10s %10s %12s %6s\n", "# bytes", "net us", "gloo us", "gloo / net", "wrong"
    for (s = 1; s <= num; s++) {
      b = sizes[s]; n = quartile("net", b); g = quartile("gloo", b)
      printf "%12d %10.0f %10.0f %12.2f %6d\n", b, n, g, g / n, wrong[b]
    }
  }' "$work/results"
