#!/usr/bin/env bash
# Who may use the API: nobody is asked on loopback until a token is made, everybody elsewhere; and what was revoked stays
# revoked, whatever becomes of the coordinator. Every route with every kind of token is in route_roles.py beside this file.
. "$(dirname "$0")/lib.sh"
cli=$bin/gradsync

# as TOKEN COMMAND…
as() { local token=$1; shift; GRADSYNC_TOKEN=$token "$@"; }
# refused CODE WHAT COMMAND…: ends so, and says so.
refused() {
  local wanted=$1 what=$2 code=0
  shift 2
  "$@" >"$run/out" 2>"$run/err" || code=$?
  same "$code" "$wanted" "exit code of $* ($(head -c 400 "$run/err"))"
  grep -qF -- "$what" "$run/err" || fail "of $* is said: $(head -c 400 "$run/err")"
  [ "$(wc -l <"$run/err")" -le 3 ] || fail "more than three lines of $*"
}
mode_of() { stat -c %a "$1"; }

claim "on a loopback address nobody is asked"
start_coordinator easy "$run/easy"
"$cli" list >"$run/out" || fail "list"
[ ! -e "$run/easy/tokens.json" ] || fail "there are tokens that nobody made"
same "$("$cli" login </dev/null | grep -o 'no token is needed')" "no token is needed" "login"

claim "the first token that is made closes the door, and leaves an administrator his"
ci=$("$cli" token new ci --role operator 2>/dev/null)
refused 5 "gradsync login" "$cli" list
same "$(mode_of "$run/easy/admin.token") $(mode_of "$run/easy/tokens.json")" "600 600" "modes"
as "$ci" "$cli" list >/dev/null || fail "list as operator"
refused 5 "has the role operator, and this needs admin" as "$ci" "$cli" token list
"$cli" login --token-file "$run/easy/admin.token" >/dev/null || fail "login as administrator"
same "$("$cli" token list -o json | jq -r '[.items[].role] | sort | join(" ")')" "admin operator" "tokens"

claim "what is revoked stays revoked when the coordinator is killed, and the last revocation opens nothing"
"$cli" token revoke ci >/dev/null
kill -9 "$coordinator_pid"
wait "$coordinator_pid" 2>/dev/null || true
start_coordinator easy "$run/easy"
refused 5 "was revoked at" as "$ci" "$cli" list
admin=$(cat "$run/easy/admin.token")
as "$admin" "$cli" token revoke "$(as "$admin" "$cli" token list -o json | jq -r '.items[] | select(.role == "admin").id')" >/dev/null
refused 5 "has none" "$cli" list
refused 5 "was revoked at" as "$admin" "$cli" list

claim "the recipe of the documentation, as it is printed, makes a file that nobody else may read, and logs in with it"
start_coordinator recipe "$run/recipe"
mkdir "$run/by_recipe"
awk '/^```sh$/ { is_on = 1; next } /^```$/ { if (is_on) exit } is_on' "$(dirname "$0")/../../docs/security.md" >"$run/by_recipe/as_printed.sh"
grep -q '^gradsync token new ' "$run/by_recipe/as_printed.sh" || fail "the first recipe makes no token"
sed "s|http://127.0.0.1:8470|$server|g" "$run/by_recipe/as_printed.sh" >"$run/by_recipe/here.sh"
(cd "$run/by_recipe" && umask 022 && XDG_CONFIG_HOME=$run/by_recipe PATH=$bin:$PATH bash -euo pipefail here.sh) >"$run/out" 2>"$run/err" \
  || fail "the recipe: $(cat "$run/out" "$run/err")"
same "$(mode_of "$run/by_recipe/ci.token")" 600 "mode of ci.token"
grep -qF '"items"' "$run/out" || fail "the recipe does not list jobs: $(cat "$run/out")"

claim "a file for a token is a new one, and who cannot have it makes no token"
admin=$(cat "$run/recipe/admin.token")
before=$(as "$admin" "$cli" token list -o json | jq '.items | length')
refused 4 "--out: $run/by_recipe/ci.token is there already" as "$admin" "$cli" token new again --role viewer --out "$run/by_recipe/ci.token"
ln -s "$run/by_recipe/led.token" "$run/by_recipe/link.token"
refused 4 "link.token is there already" as "$admin" "$cli" token new again --role viewer --out "$run/by_recipe/link.token"
refused 2 "--out: $run/by_recipe/nowhere/a.token" as "$admin" "$cli" token new again --role viewer --out "$run/by_recipe/nowhere/a.token"
[ ! -e "$run/by_recipe/led.token" ] || fail "a link was followed"
same "$(as "$admin" "$cli" token list -o json | jq '.items | length')" "$before" "tokens"
refused 5 "needs admin" as "$(cat "$run/by_recipe/ci.token")" "$cli" token new mine --role viewer --out "$run/by_recipe/mine.token"
[ ! -e "$run/by_recipe/mine.token" ] || fail "an empty file is left behind"
(umask 000 && cd "$run/by_recipe" && "$cli" worker token --data-dir "$run/recipe" --out enrol.token 2>"$run/err") || fail "worker token: $(cat "$run/err")"
same "$(mode_of "$run/by_recipe/enrol.token") $(grep -cE '^gsk_[0-9a-f]{128}$' "$run/by_recipe/enrol.token")" "600 1" "the token to enrol with"
refused 4 "is there already" "$cli" worker token --data-dir "$run/recipe" --out "$run/by_recipe/enrol.token"

claim "each role may what it says"
start_coordinator asked "$run/asked" --require-token
mkdir -p "$run/config"
"$cli" login --context asked --token-file "$run/asked/admin.token" >/dev/null
same "$(mode_of "$run/config/gradsync/contexts.json")" 600 "mode of the contexts"
for role in metrics viewer operator; do
  "$cli" token new "$role" --role "$role" --expires 1d --out "$run/$role.token" 2>/dev/null
done
mlp_job guarded 10 9 >"$run/job.json"
refused 5 "needs operator" "$cli" --token-file "$run/viewer.token" submit "$run/job.json"
"$cli" --token-file "$run/operator.token" submit "$run/job.json" >/dev/null || fail "submit as operator"
"$cli" --token-file "$run/viewer.token" show guarded >/dev/null || fail "show as viewer"
"$cli" --token-file "$run/operator.token" stop guarded >/dev/null || fail "stop as operator"
curl -fsS -H "Authorization: Bearer $(cat "$run/viewer.token")" "$server/v1/jobs/guarded/events" | jq -r '.items[] | select(.reason == "Requested").message' >"$run/asked.txt"
grep -q "^the creation of job j-.* was asked for by operator (t-" "$run/asked.txt" || fail "who submitted it: $(cat "$run/asked.txt")"
grep -q "^a stop of job j-.* was asked for by operator (t-" "$run/asked.txt" || fail "who stopped it: $(cat "$run/asked.txt")"
refused 5 "needs viewer" "$cli" --token-file "$run/metrics.token" show guarded
curl -fsS -H "Authorization: Bearer $(cat "$run/metrics.token")" "$server/metrics" | grep -q '^gradsync_http_refused_total{reason="forbidden"} [1-9]' \
  || fail "refusals are not counted"
curl -fsS "$server/livez" >/dev/null || fail "livez asks for a token"

claim "a token is shown to its own server alone, and files of tokens that others may read are refused"
start_coordinator strange "$run/strange" --require-token
refused 5 "has none" "$cli" list
"$cli" --context asked list >/dev/null || fail "list by context"
refused 2 "there is no elsewhere" "$cli" --context elsewhere list
chmod 644 "$run/viewer.token"
refused 2 "may be read by others" "$cli" --token-file "$run/viewer.token" list
chmod 640 "$run/config/gradsync/contexts.json"
refused 2 "others may read it" "$cli" --context asked list
chmod 600 "$run/config/gradsync/contexts.json"

claim "who sends the command elsewhere is not followed, and a proxy sees nothing of what stays on this machine"
cat >"$run/elsewhere.py" <<'PYTHON'
import http.server, sys
class Elsewhere(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        print(self.path, self.headers.get("Authorization"), file=sys.stderr, flush=True)
        self.send_response(302)
        self.send_header("Location", f"http://localhost:{self.server.server_port}/taken")
        self.end_headers()
    do_POST = do_DELETE = do_GET
    def log_message(self, *args): pass
server = http.server.HTTPServer(("127.0.0.1", 0), Elsewhere)
print(server.server_port, flush=True)
server.serve_forever()
PYTHON
python3 "$run/elsewhere.py" >"$run/elsewhere.port" 2>"$run/elsewhere.seen" &
pids+=("$!")
wait_for 30 "a server that redirects" test -s "$run/elsewhere.port"
elsewhere=http://127.0.0.1:$(cat "$run/elsewhere.port")
refused 6 "/taken" "$cli" --server "$elsewhere" --token-file "$run/operator.token" list
refused 6 "/taken" "$cli" --server "$elsewhere" --token-file "$run/operator.token" stop guarded
if grep -q /taken "$run/elsewhere.seen"; then fail "it was followed: $(cat "$run/elsewhere.seen")"; fi
http_proxy=$elsewhere "$cli" --context asked list >/dev/null || fail "list beside a proxy"
same "$(wc -l <"$run/elsewhere.seen")" 2 "requests elsewhere"

claim "an API apart has the coordinator's tokens"
"$bin/gradsync-api" --http 0.0.0.0:0 --coordinator "$control" --port-file "$run/api.ports" --insecure-no-tls \
  --tokens "$run/strange/tokens.json" >"$run/logs/api.log" 2>&1 &
pids+=("$!")
wait_for 30 "the API" test -s "$run/api.ports"
apart=http://127.0.0.1:$(jq -r .http "$run/api.ports" | sed 's/.*://')
admin=$(cat "$run/strange/admin.token")
asks() { same "$(curl -sS -o /dev/null -w '%{http_code}' "${@:2}")" "$1" "status of ${*:2}"; }
asks 401 "$apart/v1/jobs"
asks 200 -H "Authorization: Bearer $admin" "$apart/v1/jobs"
viewer=$(as "$admin" "$cli" token new viewer --role viewer 2>/dev/null)
seen_apart() { [ "$(curl -sS -o /dev/null -w '%{http_code}' -H "Authorization: Bearer $viewer" "$apart/v1/jobs")" = "$1" ]; }
wait_for 30 "the token apart" seen_apart 200
as "$admin" "$cli" token revoke viewer >/dev/null
wait_for 30 "the revocation apart" seen_apart 401

claim "another address than a loopback one is not served without tokens and encryption, unless told"
code=0
timeout 60 "$bin/gradsync-coordinator" --http 0.0.0.0:0 --control tcp://127.0.0.1:0 --data-dir "$run/refused" >"$run/refused.log" 2>&1 || code=$?
same "$code" 78 "exit code"
grep -q -- "--insecure-no-tls" "$run/refused.log" || fail "no way out: $(tail -n 2 "$run/refused.log")"
start_coordinator wide "$run/wide" --http 0.0.0.0:0 --insecure-no-tls
wide=http://127.0.0.1:${server##*:}
asks 401 "$wide/v1/jobs"
asks 200 -H "Authorization: Bearer $(cat "$run/wide/admin.token")" "$wide/v1/jobs"

claim "a second address is for reading, by everybody, and for nothing else"
start_coordinator read "$run/read" --require-token --http-readonly 127.0.0.1:0
readers=http://$(jq -r .http_readonly "$run/read.ports")
asks 401 "$server/v1/jobs"
for path in /v1/jobs /v1/workers /metrics /livez /v1/events; do asks 200 "$readers$path"; done
asks 403 "$readers/v1/tokens" -H "Authorization: Bearer $(cat "$run/read/admin.token")"
asks 403 -X POST "$readers/v1/jobs" -H "Authorization: Bearer $(cat "$run/read/admin.token")" -H 'Content-Type: application/json' -d "$(mlp_job read 5 1)"
asks 403 "$readers/v1/jobs" -H 'Host: evil.example'
same "$(jq -r '.event + " " + (.status | tostring)' "$run/read/audit.jsonl.refused")" "refused 403" "the audit of it"

claim "a Unix socket is for its owner, who needs no token, and who is killed leaves nothing in the way"
socket=$run/api.sock
begin_at_socket() {
  rm -f "$run/socket.ports"
  "$bin/gradsync-coordinator" --http "unix:$socket" --control tcp://127.0.0.1:0 --data-dir "$run/at_socket" --port-file "$run/socket.ports" "$@" \
    >>"$run/logs/socket.log" 2>&1 &
  socket_pid=$!
  pids+=("$socket_pid")
  wait_for 30 "the socket" test -s "$run/socket.ports"
}
begin_at_socket
same "$(mode_of "$socket")" 600 "mode of the socket"
"$cli" --server "unix:$socket" token new ci --role viewer >/dev/null 2>&1 || fail "a token by the socket"
"$cli" --server "unix:$socket" token list >/dev/null || fail "list by the socket"
same "$(curl -sS -o /dev/null -w '%{http_code}' --unix-socket "$socket" http://anything/v1/jobs)" 200 "status by the socket"
code=0
timeout 60 "$bin/gradsync-api" --http "unix:$socket" --coordinator tcp://127.0.0.1:1 >"$run/refused.log" 2>&1 || code=$?
same "$code $(grep -c 'is in use' "$run/refused.log")" "71 1" "a second server at the socket"
kill -9 "$socket_pid"
wait "$socket_pid" 2>/dev/null || true
begin_at_socket --require-token
refused 5 "has none" "$cli" --server "unix:$socket" list
kill -TERM "$socket_pid"
wait "$socket_pid" 2>/dev/null || true
[ ! -e "$socket" ] || fail "the socket is left behind"

claim "no log has a token, also where somebody put one into an address"
same "$(curl -sS -o /dev/null -w '%{http_code}' -X DELETE -H "Authorization: Bearer $(cat "$run/wide/admin.token")" "$wide/v1/tokens/$(cat "$run/wide/admin.token")")" \
  404 "status of a revocation by the token itself"
grep -qF '/v1/tokens/gs_***' "$run/logs/wide.log" || fail "that request is not in the log"
if grep -E 'gs_[A-Za-z0-9_-]{43}' "$run"/logs/*.log; then fail "a log has a token"; fi
echo "passed: who may use the API"
