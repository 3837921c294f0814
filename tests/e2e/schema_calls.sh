#!/usr/bin/env bash
# Requests made from /openapi.json, valid and not, one behind the other as links lead (schemathesis, of PyPI): none is answered with
# an error of the server's, with a status or a body that the document does not have, or in spite of a missing token.
#   schema_calls.sh [SECONDS]     for that long, 300 unless given
# Jobs that are made are stopped within seconds, for streams and followers of logs end with their job; and the plan of one may be
# answered with 503, because there is none before its ranks are in.
# Not looked at: that every request is taken which the schemas allow, because cursors, and what two members are to each other, are
# not in them.
. "$(dirname "$0")/lib.sh"
venv=${SCHEMATHESIS_VENV:-$run/venv}
[ -x "$venv/bin/schemathesis" ] || { python3 -m venv "$venv" && "$venv/bin/pip" -q install schemathesis; } || { echo "SKIP: schemathesis cannot be installed"; exit 77; }
start_coordinator fuzzed "$run/data" --require-token
admin=$(cat "$run/data/admin.token")
as_admin() { curl -fsS -H "Authorization: Bearer $admin" -H 'Content-Type: application/json' "$@"; }
as_admin -d '{"name":"fuzz","role":"admin"}' "$server/v1/tokens" | jq -r .token >"$run/fuzz.token"
stop_jobs() {
  local id
  while kill -0 "$coordinator_pid" 2>/dev/null; do
    as_admin "$server/v1/jobs?state=queued&limit=500&fields=id" | jq -r '.items[].id' | while read -r id; do
      as_admin -d '{"mode":"now"}' "$server/v1/jobs/$id/stop"
    done
    sleep 1
  done
}
stop_jobs >/dev/null 2>&1 &
pids+=("$!")
cat >"$run/schemathesis.toml" <<'TOML'
[[operations]]
include-path = "/v1/jobs/{job}/plan"
[operations.checks]
not_a_server_error.expected-statuses = ["2xx", "3xx", "4xx", 503]
TOML
# examineWorkers waits for workers; a token that revokes itself ends the run.
(cd "$run" && "$venv/bin/schemathesis" run "$server/openapi.json" -H "Authorization: Bearer $(cat "$run/fuzz.token")" --checks all \
  --exclude-checks positive_data_acceptance --phases examples,coverage,fuzzing,stateful --max-time "${1:-300}" --max-examples 200 --continue-on-failure \
  --request-timeout 60 --suppress-health-check all --warnings off --no-color --seed "${GRADSYNC_SEED:-1}") || fail "schemathesis"
kill -0 "$coordinator_pid" || fail "the coordinator has ended"
echo "passed: requests made from the schemas"
