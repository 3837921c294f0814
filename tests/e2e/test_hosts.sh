#!/usr/bin/env bash
# Who may call the API: Host and Origin as a browser sends them, on loopback and on all addresses.
. "$(dirname "$0")/lib.sh"

# answers STATUS CODE CURL_FLAG…: the status, and the problem's code ("-": any body).
answers() {
  local wanted=$1 code=$2 got
  shift 2
  got=$(curl -sS -o "$run/body" -w '%{http_code} %{content_type}' "$@")
  same "${got%% *}" "$wanted" "status of $* ($(head -c 400 "$run/body"))"
  [ "$code" = - ] && return
  same "${got#* }" application/problem+json "type of $*"
  same "$(body .code)" "$code" "code of $*"
}

# check_names PORT: what holds wherever the server listens.
check_names() {
  local port=$1 here=http://127.0.0.1:$1
  claim "port $port: own names are served, however they are written"
  answers 200 - "$here/livez"
  for host in "localhost:$port" "LOCALHOST:$port" "localhost.:$port" "[::1]:$port" "[0:0:0:0:0:0:0:1]:$port"; do
    answers 200 - -H "Host: $host" "$here/livez"
  done

  claim "port $port: a rebound name, another port and no name are refused, and the answer says how to allow it"
  for host in "evil.example:$port" "localhost.evil.example:$port" localhost 127.0.0.1 "localhost:1" "[::1]" "[::1"; do
    answers 403 bad_host -H "Host: $host" "$here/v1/jobs"
    body .detail | grep -q '^Host ' || fail "the header is not named: $(body .detail)"
  done
  answers 403 bad_host -H "Host: evil.example:$port" "$here/v1/jobs"
  body .detail | grep -q -- "--allow-host evil.example:$port" || fail "no way out: $(body .detail)"
  answers 403 bad_host --http1.0 -H 'Host:' "$here/livez"
  answers 403 bad_host -H 'Host:' "$here/livez"

  claim "port $port: a page from another origin stops no job"
  for origin in "http://localhost:3000" "http://127.0.0.1" "http://evil.example:$port" "https://127.0.0.1" null; do
    answers 403 bad_origin -X POST -H "Origin: $origin" "$here/v1/jobs/$job/stop"
    body .detail | grep -q '^Origin ' || fail "the header is not named: $(body .detail)"
  done
  same "$(curl -sS "$here/v1/jobs/$job" | jq -r .state)" queued "state of the job"
  answers 404 not_found -X POST -H "Origin: $here" "$here/v1/jobs/j-none/stop"
}

claim "on a loopback address"
start_coordinator loopback "$run/loopback"
submit "$(mlp_job untouched 1000 2)"
port=${server##*:}
check_names "$port"
answers 403 bad_host -H "Host: 192.0.2.7:$port" "$server/livez"

claim "on all addresses, where nobody shows credentials"
start_coordinator open "$run/open" --http 0.0.0.0:0 --insecure-no-auth --allow-host coordinator:8470 --allow-host train.example
submit "$(mlp_job untouched 1000 2)"
port=${server##*:}
check_names "$port"
for host in "192.0.2.7:$port" "[2001:db8::5]:$port" "$(hostname):$port" coordinator:8470 Coordinator.:8470 train.example train.example:443; do
  answers 200 - -H "Host: $host" "http://127.0.0.1:$port/livez"
done
for host in coordinator:8471 coordinator "192.0.2.7:1" evil.train.example; do
  answers 403 bad_host -H "Host: $host" "http://127.0.0.1:$port/livez"
done

claim "behind a proxy that passes Host on, its pages may call, others not"
answers 404 not_found -X POST -H "Host: train.example" -H "Origin: https://train.example" "http://127.0.0.1:$port/v1/jobs/j-none/stop"
answers 403 bad_origin -X POST -H "Host: train.example" -H "Origin: https://other.example" "http://127.0.0.1:$port/v1/jobs/j-none/stop"

claim "gradsync-api alone keeps the same rules"
"$bin/gradsync-api" --http 0.0.0.0:0 --coordinator "$control" --port-file "$run/api.ports" --insecure-no-auth >"$run/logs/api.log" 2>&1 &
pids+=($!)
wait_for 30 "ports of the api" test -s "$run/api.ports"
port=$(jq -r .http "$run/api.ports")
port=${port##*:}
wait_for 30 "the api" curl -fsS "http://127.0.0.1:$port/readyz"
check_names "$port"

claim "an entry that is no name is refused"
code=0
"$bin/gradsync-api" --http 127.0.0.1:0 --allow-host 'http://x' >/dev/null 2>"$run/err" || code=$?
same "$code" 64 "exit code"
grep -q -- "--allow-host: 'http://x'" "$run/err" || fail "not named: $(cat "$run/err")"
