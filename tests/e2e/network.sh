# Shared by the tests of cut links: real programs on hosts that are network namespaces. Sourced in place of lib.sh.
#
# The coordinator has a namespace, `centre`; all agents have one, `ranks` (ranks of one job reduce over shared memory,
# whose socket is of one namespace), where each agent has a link of its own to the coordinator. All namespaces, mounts
# and processes are those of a private world that ends with the script, whatever ends it.
#   cut AGENT… in|out|both    packets to or from these agents are lost, without a word to anybody
#   heal                      all links are whole again
# The coordinator's host is cut when all links are.
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
    ip netns exec probe iptables -A INPUT -j DROP' >/dev/null 2>&1 || skip "no network namespaces, or no packet filter in them"
  export PATH
  # Not exec: a shell that is the first process of its namespace would have to be their init.
  GRADSYNC_NETWORK_WORLD=1 unshare "${world[@]}" bash -c 'mount -t tmpfs tmpfs /run && mkdir /run/netns && bash "$@"' world "$0" "$@"
  exit
fi
. "$(dirname "$0")/lib.sh"

ip netns add centre
ip netns add ranks
ip -n centre link set lo up
ip -n ranks link set lo up
num_links=0
declare -A link_of

curl() { ip netns exec centre curl "$@"; }
gradsync() { ip netns exec centre "$bin/gradsync" "$@"; }

# link AGENT: a line between the two, numbered.
link() {
  num_links=$((num_links + 1))
  local n=$num_links
  link_of[$1]=$n
  ip link add "c$n" netns centre type veth peer name "r$n" netns ranks
  ip -n centre addr add "10.77.$n.1/24" dev "c$n"
  ip -n ranks addr add "10.77.$n.2/24" dev "r$n"
  ip -n centre link set "c$n" up
  ip -n ranks link set "r$n" up
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

# agent NAME SLOTS [FLAG…]: sets worker_pid.
agent() {
  local name=$1 slots=$2
  shift 2
  [ -n "${link_of[$name]:-}" ] || link "$name"
  ip netns exec ranks "$bin/gradsync-worker" --coordinator "tcp://10.77.${link_of[$name]}.1:8471" --name "$name" --slots "$slots" \
    --data-root "$run/root" "$@" >>"$run/logs/$name.log" 2>&1 &
  worker_pid=$!
  pids+=("$worker_pid")
  wait_for 30 "worker $name" worker_is "$name" connected
}

cut() {
  local direction=${*: -1} name
  for name in "${@:1:$#-1}"; do
    local n=${link_of[$name]}
    [ "$direction" = in ] || ip netns exec ranks iptables -A OUTPUT -o "r$n" -j DROP
    [ "$direction" = out ] || ip netns exec ranks iptables -A INPUT -i "r$n" -j DROP
  done
}
heal() { ip netns exec ranks iptables -F; }
# hosts_processes SIGNAL HOST: to all of centre or ranks.
signal_host() { ip netns pids "$2" | xargs -r kill "-$1"; }

# The state that a job has come to, byte by byte: the parts of its last checkpoint.
tensors_of() { # JOB
  local newest
  newest=$(find "$run" -path "*/$1/step-*" -name MANIFEST.json | sort | tail -n 1)
  [ -n "$newest" ] || { echo none; return; }
  (command cd "$(dirname "$newest")" && sha256sum part-*.safetensors | sha256sum)
}
