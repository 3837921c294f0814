#!/usr/bin/env bash
# A page of another origin in a real browser, which runs it as an attacker's: it posts and reads, as a form, as a script and with what the
# browser keeps for this server; and a name of the attacker's that leads to this machine (DNS rebinding). Nothing changes, and nothing is read.
. "$(dirname "$0")/lib.sh"
browser=
for name in chromium chromium-browser google-chrome; do
  if command -v "$name" >/dev/null; then browser=$name && break; fi
done
[ -n "$browser" ] || { echo "SKIP: no chromium"; exit 77; }
command -v python3 >/dev/null || { echo "SKIP: no python3"; exit 77; }
here=$(cd "$(dirname "$0")" && pwd)

# The attacker's server: the page, and what it tells.
python3 "$here/attacker.py" "$here/attacker.html" "$run/told" >"$run/attacker.port" 2>"$run/logs/attacker.log" &
pids+=("$!")
wait_for 30 "the attacker's server" test -s "$run/attacker.port"
attacker=$(cat "$run/attacker.port")

# visit ORIGIN TARGET [QUERY [FLAG…]]: the browser opens the attacker's page at ORIGIN, which attacks TARGET; $run/told is what it saw. Each
# visit has a profile of its own. Names of the attacker's lead to this machine.
job=$(mlp_job taken 5 1 | jq -sRr @uri)
visit() {
  local origin=$1 target=$2 query=${3-}
  shift $(($# < 3 ? $# : 3))
  rm -f "$run/told"
  timeout 120 "$browser" --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --user-data-dir="$run/profile.$SRANDOM" --no-first-run \
    --host-resolver-rules="MAP *.example 127.0.0.1" --remote-debugging-port=0 "$@" \
    "http://$origin/?target=$target&job=$job$query" >"$run/logs/browser.log" 2>&1 &
  local pid=$!
  pids+=("$pid")
  wait_for 90 "what the page at $origin saw" test -s "$run/told"
  kill "$pid" 2>/dev/null || true
  wait "$pid" 2>/dev/null || true
}
jobs_there() { curl -fsS "$@" "$server/v1/jobs" | jq '.items | length'; }
refused_names() { get /metrics | awk '/^gradsync_http_refused_total\{reason="bad_name"\}/ { count = $2 } END { print count + 0 }'; }
saw() { jq -e "$1" "$run/told" >/dev/null || fail "$2: $(cat "$run/told")"; }

claim "a server that lets everybody in is attacked with success, so the page does what it is to do"
python3 "$here/attacker.py" --victim >"$run/victim.port" 2>"$run/logs/victim.log" &
pids+=("$!")
wait_for 30 "a victim" test -s "$run/victim.port"
victim=$(cat "$run/victim.port")
visit "attacker.example:$attacker" "127.0.0.1:$victim"
saw '.read == "status 200" and .json == "status 200" and .remove == "status 200"' "the page is harmless"
visit "rebound.example:$victim" "rebound.example:$victim" "" --proxy-server="127.0.0.1:$attacker"
saw '.read == "status 200" and .json == "status 200" and .remove == "status 200"' "the page is harmless where its name leads elsewhere"

claim "a page of another site posts nothing to a server that asks nobody, and reads nothing there"
start_coordinator open "$run/open"
visit "attacker.example:$attacker" "${server#http://}"
saw '[.read, .json, .plain, .remove] | all(. == "blocked")' "the page read an answer"
same "$(jobs_there)" 0 "jobs after a post of another site"
[ "$(refused_names)" -ge 2 ] || fail "the posts never came: $(get /metrics | grep http_refused)"

claim "a name of the attacker's that comes to lead to this machine is no name of this server (DNS rebinding)"
before=$(refused_names)
visit "rebound.example:${server##*:}" "rebound.example:${server##*:}" "" --proxy-server="127.0.0.1:$attacker"
saw '[.read, .json, .plain, .remove] | all(. == "status 421" or . == "status 403")' "the page read an answer"
same "$(jobs_there)" 0 "jobs after a post by another name"
[ "$(refused_names)" -ge $((before + 4)) ] || fail "it was not refused by its name"

# Cookies know no ports: the browser shows this one to the server at its other port, too, and both are one site to it.
claim "a page at another port of the same host changes and reads nothing with the session of whoever opens it"
start_coordinator asked "$run/asked" --require-token
token=$(cat "$run/asked/admin.token")
curl -fsS -c "$run/cookies" -o /dev/null -X POST -H "Authorization: Bearer $token" "$server/v1/session"
cookie=$(awk '$6 ~ /gradsync/ { print $6 "=" $7 }' "$run/cookies")
[ -n "$cookie" ] || fail "no cookie: $(cat "$run/cookies")"
same "$(curl -sS -o /dev/null -w '%{http_code}' -H "Cookie: $cookie" "$server/v1/jobs")" 200 "status with the session"
visit "127.0.0.1:$attacker" "${server#http://}" "&cookie=$cookie"
saw '[.read, .json, .plain, .remove] | all(. == "blocked")' "the page read an answer"
same "$(jobs_there -H "Authorization: Bearer $token")" 0 "jobs after a post with the session"

echo "passed: pages of others in a browser"
