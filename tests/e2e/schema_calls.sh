#!/usr/bin/env bash
# Requests made from /openapi.json, valid and not, one behind the other as links lead (schemathesis, of PyPI): none is answered with
# an error of the server's, with a status or a body that the document does not have, or in spite of a missing token.
#   schema_calls.sh [SECONDS]     for that long, 300 unless given
# Not looked at: that every request is taken which the schemas allow, because cursors, and what two members are to each other, are
# not in them; streams, which do not end; and the plan of a job, which is answered with 503 until there is one.
. "$(dirname "$0")/lib.sh"
venv=$run/venv
python3 -m venv "$venv" && "$venv/bin/pip" -q install schemathesis || { echo "SKIP: schemathesis cannot be installed"; exit 77; }
start_coordinator fuzzed "$run/data" --require-token
admin=$(cat "$run/data/admin.token")
curl -fsS -H "Authorization: Bearer $admin" -H 'Content-Type: application/json' -d '{"name":"fuzz","role":"admin"}' "$server/v1/tokens" | jq -r .token >"$run/fuzz.token"
# examineWorkers waits for workers; a token that revokes itself ends the run.
(cd "$run" && "$venv/bin/schemathesis" run "$server/openapi.json" -H "Authorization: Bearer $(cat "$run/fuzz.token")" --checks all \
  --exclude-checks positive_data_acceptance --phases examples,coverage,fuzzing,stateful --max-time "${1:-300}" --max-examples 200 --continue-on-failure \
  --request-timeout 60 --suppress-health-check all --warnings off --no-color --exclude-path-regex '/stream$|/logs$|/plan$' --seed "${GRADSYNC_SEED:-1}") || fail "schemathesis"
kill -0 "$coordinator_pid" || fail "the coordinator has ended"
echo "passed: requests made from the schemas"
