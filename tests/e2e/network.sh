# Shared by the tests of cut links: real programs on hosts that are network namespaces. Sourced in place of lib.sh.
#
# The coordinator has a namespace, `centre`; agents have one, `ranks`, or another host (ranks of one job reduce over shared
# memory, whose socket is of one namespace), where each agent has a link of its own to the coordinator. All namespaces, mounts
# and processes are those of a private world that ends with the script, whatever ends it.
#   cut AGENT… in|out|both    packets to or from these agents are lost, without a word to anybody
#   heal                      all links are whole again
#   join NAME [FLAG…]         a worker with one slot on a host of its own, which reaches the others through centre
# The coordinator's host is cut when all links are.
#   WALL=FILE                 all programs read their wall clock with the seconds in FILE added
skip() { echo "SKIP: $*"; exit 77; }
if [ -z "${GRADSYNC_NETWORK_WORLD:-}" ]; then
  for tool in ip iptables unshare; do
    command -v "$tool" >/dev/null || [ -x "/usr/sbin/$tool" ] || skip "no $tool"
  done
  PATH=$PATH:/usr/sbin
  world=(--net --mount --pid --fork --kill-child --mount-proc)
  [ "$(id -u)" -eq 0 ] || world+=(--user --map-root-user)
  # shellcheck disable=SC2016  # expanded inside
  unshare "${world[@]}" bash -c 'mount -t tmpfs tmpfs /run && mkdir /run/netns && ip netns add probe &&
    ip netns exec probe iptables -w -A INPUT -j DROP' >/dev/null 2>&1 || skip "no network namespaces, or no packet filter in them"
  export PATH
  # Not exec: a shell that is the first process of its namespace would have to be their init.
  GRADSYNC_NETWORK_WORLD=1 unshare "${world[@]}" bash -c 'mount -t tmpfs tmpfs /run && mkdir /run/netns && bash "$@"' world "$0" "$@"
  exit
fi
. "$(dirname "$0")/lib.sh"

host() { ip netns add "$1" && ip -n "$1" link set lo up; }  # NAME
host centre
host ranks
num_links=0
declare -A link_of host_of

curl() { ip netns exec centre curl "$@"; }
gradsync() { ip netns exec centre "$bin/gradsync" "$@"; }

# link AGENT HOST: a line between the two, numbered.
link() {
  num_links=$((num_links + 1))
  local n=$num_links
  link_of[$1]=$n
  host_of[$1]=$2
  ip link add "c$n" netns centre type veth peer name "r$n" netns "$2"
  ip -n centre addr add "10.77.$n.1/24" dev "c$n"
  ip -n "$2" addr add "10.77.$n.2/24" dev "r$n"
  ip -n centre link set "c$n" up
  ip -n "$2" link set "r$n" up
}

# centre DATA_DIR [FLAG…]: starts the coordinator, at the same addresses each time.
centre() {
  local data=$1
  shift
  rm -f "$run/centre.ports"
  ip netns exec centre "$bin/gradsync-coordinator" --http 127.0.0.1:8470 --control tcp://0.0.0.0:8471 --insecure-no-auth \
    --data-dir "$data" --port-file "$run/centre.ports" "$@" >>"$run/logs/centre.log" 2>&1 &
  coordinator_pid=$!
  pids+=("$coordinator_pid")
  server=http://127.0.0.1:8470
  export GRADSYNC_SERVER=$server
  wait_for 30 "the coordinator" curl -fsS "$server/readyz"
}

# agent NAME SLOTS [FLAG…]: on $at, else on ranks; sets worker_pid.
agent() {
  local name=$1 slots=$2
  shift 2
  [ -n "${link_of[$name]:-}" ] || link "$name" "${at:-ranks}"
  ip netns exec "${host_of[$name]}" "$bin/gradsync-worker" --coordinator "tcp://10.77.${link_of[$name]}.1:8471" --name "$name" --slots "$slots" \
    --data-root "$run/root" "$@" >>"$run/logs/$name.log" 2>&1 &
  worker_pid=$!
  pids+=("$worker_pid")
  wait_for 30 "worker $name" worker_is "$name" connected
}

# The coordinator's host passes packets between the others, as a router would.
route_all() {
  ip netns exec centre sysctl -qw net.ipv4.ip_forward=1 2>/dev/null || ip netns exec centre sh -c 'echo 1 >/proc/sys/net/ipv4/ip_forward' || skip "no forwarding"
}
join() {
  local name=$1
  shift
  [ -n "${link_of[$name]:-}" ] || host "on-$name"
  at=on-$name agent "$name" 1 "$@"
  ip -n "${host_of[$name]}" route replace default via "10.77.${link_of[$name]}.1"
}
address_of() { echo "10.77.${link_of[$1]}.2"; }

cut() {
  local direction=${*: -1} name
  for name in "${@:1:$#-1}"; do
    local n=${link_of[$name]}
    [ "$direction" = in ] || ip netns exec "${host_of[$name]}" iptables -w -A OUTPUT -o "r$n" -j DROP
    [ "$direction" = out ] || ip netns exec "${host_of[$name]}" iptables -w -A INPUT -i "r$n" -j DROP
  done
}
heal() { for name in "${!host_of[@]}"; do ip netns exec "${host_of[$name]}" iptables -w -F; done; }
# To all on it; one that has just ended is no reason to fail.
signal_host() { ip netns pids "$2" | xargs -r kill "-$1" 2>/dev/null || [ $? -eq 123 ]; }  # SIGNAL HOST

# How long things take, on a clock that nobody sets.
now_ms() { awk '{ printf "%d\n", $1 * 1000 }' /proc/uptime; }
# between MILLISECONDS LEAST MOST WHAT: most is a multiple that a busy machine needs.
between() { [ "$1" -ge "$2" ] && [ "$1" -le "$3" ] || fail "$4 after $1 ms, not between $2 and $3"; }

# The state that a job has come to, byte by byte: the parts of its last checkpoint.
tensors_of() { # JOB
  local newest
  newest=$(find "$run" -path "*/$1/step-*" -name MANIFEST.json | sort | tail -n 1)
  [ -n "$newest" ] || { echo none; return; }
  (command cd "$(dirname "$newest")" && sha256sum part-*.safetensors | sha256sum)
}
