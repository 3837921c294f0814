#!/usr/bin/env bash
# Who did what at the control port: calls with an operator's key that no API of the coordinator has seen, workers that enrol, keys that
# are refused, and who made and revoked keys beside it.
. "$(dirname "$0")/lib.sh"
unset GRADSYNC_KEY GRADSYNC_ENROL
data=$run/data
cli() { GRADSYNC_DATA_DIR=$data "$bin/gradsync" "$@"; }
start_coordinator audited "$data" --require-key
own=$server
cli key new op --role operator --out "$run/op.key" 2>/dev/null
cli key new eye --role viewer --out "$run/eye.key" 2>/dev/null
cli worker token --out "$run/enrol.token" 2>/dev/null

# begin_api NAME [FLAG…]: sets apart. With the key of that name.
begin_api() {
  local name=$1
  shift
  "$bin/gradsync-api" --http 127.0.0.1:0 --coordinator "$control" --key "$run/$name.key" --port-file "$run/$name.ports" "$@" >>"$run/logs/$name.log" 2>&1 &
  api_pid=$!
  pids+=("$api_pid")
  wait_for 30 "$name" test -s "$run/$name.ports"
  apart=http://127.0.0.1:$(jq -r .http "$run/$name.ports" | sed 's/.*://')
  wait_for 30 "$name connected" curl -fsS "$apart/livez"
}
# lines FILTER: of the audit, as far as the filter takes them.
lines() { jq -c "select($1)" "$data/audit.jsonl"; }
has_lines() { [ "$(lines "$2" | wc -l)" = "$1" ]; }
has_refused() { [ "$(jq -c "select($2)" "$data/audit.jsonl.refused" | wc -l)" = "$1" ]; }

claim "a call with an operator's key has a line when it begins and one when it is answered"
begin_api op
id=$(curl -fsS "$apart/v1/jobs" -H 'Content-Type: application/json' -d "$(mlp_job first 10 1)" | jq -r .id)
curl -fsS -X POST "$apart/v1/jobs/$id/stop" -H 'Content-Type: application/json' -d '{"mode":"now"}' >/dev/null || fail "stop"
curl -sS -X POST "$apart/v1/jobs/nobody/replan" >/dev/null
wait_for 20 "the lines" has_lines 1 '.route == "ReplanJob" and .event == "answered"'
same "$(lines '.method == "CALL"' | jq -r '[.event, .route, .name, .role, (.result // "-")] | join(" ")')" "asked CreateJob op operator -
answered CreateJob op operator OK
asked StopJob op operator -
answered StopJob op operator OK
asked ReplanJob op operator -
answered ReplanJob op operator NOT_FOUND" "the lines"
lines '.route == "CreateJob" and .event == "answered"' | jq -e --arg id "$id" '.made == $id and (.token | startswith("k-")) and (.from | startswith("127.0.0.1:")) and .seconds >= 0' >/dev/null ||
  fail "who, where from and what was made: $(lines '.route == "CreateJob"')"
same "$(lines '.route == "StopJob"' | jq -r .path | sort -u)" "$id" "which job"

claim "what the API of the coordinator is asked has its lines and no others"
before=$(lines '.method == "CALL"' | wc -l)
curl -fsS "$own/v1/jobs" -H 'Content-Type: application/json' -d "$(mlp_job second 10 1)" >/dev/null || fail "submit"
wait_for 20 "its lines" has_lines 2 '.method == "POST" and .route == "/v1/jobs"'
same "$(lines '.method == "CALL"' | wc -l)" "$before" "lines of calls"

claim "for whom an API asks is in the line beside its key"
kill "$api_pid"
rm -f "$run/op.ports"
begin_api op --require-token --tokens "$run/apart.tokens.json"
curl -fsS "$apart/v1/jobs" -H "Authorization: Bearer $(cat "$run/admin.token")" -H 'Content-Type: application/json' -d "$(mlp_job third 10 1)" >/dev/null || fail "submit"
wait_for 20 "its line" has_lines 1 '.event == "answered" and .route == "CreateJob" and (.by // "" | startswith("first-"))'

claim "a worker that enrols has lines"
"$bin/gradsync-worker" --coordinator "$control" --data-root "$run/root" --slots 1 --name fresh --key "$run/fresh.key" --enrol "$run/enrol.token" >>"$run/logs/fresh.log" 2>&1 &
pids+=("$!")
wait_for 30 "fresh" worker_is fresh connected
same "$(lines '.route == "Enrol"' | jq -r '[.event, .path, .role, (.result // "-"), (.made // "-")[0:2]] | join(" ")')" "asked fresh enrol - -
answered fresh enrol OK k-" "the lines"

claim "the name of who wants to enrol forges no field of the log, nor does it drive a terminal"
cli worker token --out "$run/other.token" 2>/dev/null
timeout 60 "$bin/gradsync-worker" --coordinator "$control" --data-root "$run/root" --slots 1 --name "$(printf 'x id=k-1 name="admin" \033[2J')" --key "$run/forged.key" \
  --enrol "$run/other.token" >"$run/logs/forged.log" 2>&1 && fail "a name that is none was enrolled"
wait_for 20 "the line" grep -q '"not enrolled"' "$run/logs/audited.log"
grep '"not enrolled"' "$run/logs/audited.log" | grep -qF 'name="x id=k-1 name=\"admin\"  [2J" reason=' || fail "the log: $(grep '"not enrolled"' "$run/logs/audited.log" | cat -v)"

claim "calls that a key may not make are one line for each key and minute, in the other file"
kill "$api_pid"
begin_api eye
for _ in $(seq 20); do curl -sS -o /dev/null -X POST "$apart/v1/jobs/$id/stop" -H 'Content-Type: application/json' -d '{"mode":"now"}'; done
wait_for 20 "the refusal" has_refused 1 '.name == "eye"'
sleep 1
has_refused 1 '.name == "eye" and .route == "StopJob" and .role == "viewer" and .result == "PERMISSION_DENIED" and .count == 1' || fail "refusals: $(cat "$data/audit.jsonl.refused")"

claim "so are connections with keys that are not known"
GRADSYNC_DATA_DIR=$run/elsewhere "$bin/gradsync" keygen >/dev/null
cp "$data/control.key" "$run/elsewhere/control.key"
GRADSYNC_DATA_DIR=$run/elsewhere "$bin/gradsync" key new stranger --role worker --out "$run/stranger.key" 2>/dev/null
"$bin/gradsync-worker" --coordinator "$control" --data-root "$run/root" --slots 1 --key "$run/stranger.key" >>"$run/logs/stranger.log" 2>&1 &
stranger_pid=$!
pids+=("$stranger_pid")
shown=$(jq -r .public "$run/stranger.key")
wait_for 30 "the stranger's line" has_refused 1 ".route == \"connect\" and .result == \"unknown\" and .token == \"${shown:0:16}\""
sleep 3
has_refused 1 '.route == "connect"' || fail "more than one line in a minute: $(cat "$data/audit.jsonl.refused")"
kill "$stranger_pid"

claim "who made and revoked keys beside the coordinator is in a file of its own"
cli key revoke eye >/dev/null
code=0
cli key revoke nobody >/dev/null 2>&1 || code=$?
same "$code" 3 "exit code of a revocation of nobody"
same "$(jq -r '[.event, .route, (.path // "-"), (.result // "-"), (.made // "-")[0:2]] | join(" ")' "$data/keys-audit.jsonl")" "asked key new op - -
answered key new op OK k-
asked key new eye - -
answered key new eye OK k-
asked worker token - - -
answered worker token - OK k-
asked worker token - - -
answered worker token - OK k-
asked key revoke eye - -
answered key revoke eye OK -
asked key revoke nobody - -
answered key revoke nobody NOT_FOUND -" "the lines"
same "$(stat -c %a "$data/keys-audit.jsonl")" 600 "mode of the file"
jq -e --arg uid "uid-$(id -u)" '.name == $uid' "$data/keys-audit.jsonl" >/dev/null || fail "whose they are"

claim "numbers have no hole, and no line has a secret"
for file in audit.jsonl audit.jsonl.refused keys-audit.jsonl; do
  same "$(jq .seq "$data/$file" | awk '$1 != NR { print "hole" }' | head -1)" "" "numbers of $file"
  for key in op eye fresh; do ! grep -qF "$(jq -r .secret "$run/$key.key")" "$data/$file" || fail "$file has the key of $key"; done
  ! grep -qE 'gsk_[0-9a-f]|gs_[A-Za-z0-9_-]{43}' "$data/$file" || fail "$file has a token"
done
echo "passed: who did what at the control port"
