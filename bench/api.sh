#!/usr/bin/env bash
# What a token and TLS cost a request on a connection that is kept: GET /v1/jobs of a coordinator without jobs, asked by curl, one request
# behind the other; three coordinators in turns. Medians and bests of the rounds, and their
# ratios to the open one.
#   bench/api.sh BUILD [ROUNDS]     1000 requests each round
set -euo pipefail
build=${1:?names the build} rounds=${2:-15}
run=$(mktemp -d)
pids=()
trap 'kill "${pids[@]}" 2>/dev/null || true; wait; rm -rf "$run"' EXIT
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=bench -addext subjectAltName=IP:127.0.0.1 \
  -keyout "$run/key" -out "$run/cert" 2>/dev/null
chmod 600 "$run/key"
begin() { # NAME FLAG…
  "$build/bin/gradsync-coordinator" --http 127.0.0.1:0 --control tcp://127.0.0.1:0 --data-dir "$run/$1" --port-file "$run/$1.ports" --log-level warn "${@:2}" 2>"$run/$1.log" &
  pids+=("$!")
  for _ in $(seq 300); do [ ! -s "$run/$1.ports" ] || break; sleep 0.1; done
}
begin open
begin token --require-token
begin tls --require-token --tls-cert "$run/cert" --tls-key "$run/key"
ask() { # NAME: microseconds a request
  local scheme=http flags=() port from to
  port=$(sed 's/.*"http":"[^"]*:\([0-9]*\)".*/\1/' "$run/$1.ports")
  [ "$1" = open ] || flags+=(-H "Authorization: Bearer $(cat "$run/$1/admin.token")")
  [ "$1" != tls ] || { scheme=https; flags+=(--cacert "$run/cert"); }
  from=$(date +%s%N)
  curl -fsS "${flags[@]}" -o /dev/null "$scheme://127.0.0.1:$port/v1/jobs?limit=[1-500]" -o /dev/null "$scheme://127.0.0.1:$port/v1/jobs?limit=[1-500]"
  to=$(date +%s%N)
  echo $(((to - from) / 1000000))
}
for name in open token tls; do ask "$name" >/dev/null; done
for _ in $(seq "$rounds"); do for name in open token tls; do ask "$name" >>"$run/$name.us"; done; done
nth() { sort -n "$run/$1.us" | sed -n "$2p"; }
middle=$(((rounds + 1) / 2))
for name in open token tls; do
  awk -v name="$name" -v a="$(nth $name $middle)" -v b="$(nth open $middle)" -v c="$(nth $name 1)" -v d="$(nth open 1)" \
    'BEGIN { printf "%-6s %5d µs a request, %.2f of the open one; the best round %5d µs, %.2f\n", name, a, a / b, c, c / d }'
done
