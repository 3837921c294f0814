# shellcheck shell=bash
# Lines between network namespaces with a rate and a delay of their own. Sourced, inside a world of namespaces; needs a
# compiler. Kernels of test machines have `tc tbf` and no netem: the rate is tbf's, at both ends, and
# the rest the relay's (relay.c), in a namespace between the two.
#   link_world DIR              where the relay is built, once
#   link_line N LEFT RIGHT      10.78.N.1 in namespace LEFT and 10.78.N.2 in RIGHT, interfaces lN and rN
#   link_rate N BYTES_PER_SECOND     both ways; 0: none
#   link_delay N MICROSECONDS [FLAG…] one way, both ways; flags of the relay (--jitter-us, --loss, --reorder); 0 without: none
link_relay=
declare -A link_ends link_pids

link_world() {
  link_relay=$1/link_relay
  [ -x "$link_relay" ] || "${CC:-cc}" -O2 -o "$link_relay" "$(dirname "${BASH_SOURCE[0]}")/relay.c"
}

link_line() {
  local n=$1 left=$2 right=$3
  link_ends[$n]="$left $right"
  ip netns add "line$n"
  ip link add "l$n" netns "$left" type veth peer name a netns "line$n"
  ip link add "r$n" netns "$right" type veth peer name b netns "line$n"
  ip -n "$left" addr add "10.78.$n.1/24" dev "l$n"
  ip -n "$right" addr add "10.78.$n.2/24" dev "r$n"
  # The line itself says nothing of its own.
  ip netns exec "line$n" sh -c 'echo 1 >/proc/sys/net/ipv6/conf/all/disable_ipv6' 2>/dev/null || true
  local end
  for end in "$left l$n" "$right r$n" "line$n a" "line$n b"; do
    # shellcheck disable=SC2086  # two words
    set -- $end
    ip -n "$1" link set dev "$2" up
  done
  link_delay "$n" 0
}

link_rate() {
  local n=$1 rate=$2 left right
  read -r left right <<<"${link_ends[$n]}"
  tc -n "$left" qdisc del dev "l$n" root 2>/dev/null || true
  tc -n "$right" qdisc del dev "r$n" root 2>/dev/null || true
  [ "$rate" != 0 ] || return 0
  # What may leave at once is what comes in a millisecond, or one frame of segmentation put off.
  local burst=$((rate / 1000))
  [ "$burst" -ge 66000 ] || burst=66000
  tc -n "$left" qdisc add dev "l$n" root tbf rate "${rate}bps" burst "$burst" latency 50ms
  tc -n "$right" qdisc add dev "r$n" root tbf rate "${rate}bps" burst "$burst" latency 50ms
}

link_delay() {
  local n=$1 delay=$2 said
  shift 2
  if [ -n "${link_pids[$n]:-}" ]; then
    kill -TERM "${link_pids[$n]}" 2>/dev/null || true
    wait "${link_pids[$n]}" 2>/dev/null || true
  fi
  said=$(mktemp)
  ip netns exec "line$n" "$link_relay" a b --delay-us "$delay" "$@" >"$said" &
  link_pids[$n]=$!
  if declare -p pids >/dev/null 2>&1; then pids+=("$!"); fi  # a test ends what it started
  local left=300
  until grep -q ready "$said"; do
    [ $((left--)) -gt 0 ] && kill -0 "${link_pids[$n]}" 2>/dev/null || { echo "link_delay: no relay on line $n" >&2; return 1; }
    sleep 0.1
  done
  rm -f "$said"
}
