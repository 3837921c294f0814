#!/usr/bin/env bash
# The command line against a cluster that `gradsync up` started.
. "$(dirname "$0")/lib.sh"
cli=$bin/gradsync

claim "unknown commands and flags are refused with a suggestion"
code=0
"$cli" submt >/dev/null 2>"$run/err" || code=$?
same "$code" 2 "exit code"
grep -q "did you mean 'submit'" "$run/err" || fail "no suggestion: $(cat "$run/err")"
code=0
"$cli" list --alll >/dev/null 2>&1 || code=$?
same "$code" 2 "exit code of an unknown flag"
refuses() { # MESSAGE WORD…
  local message=$1 code=0
  shift
  "$cli" "$@" >/dev/null 2>"$run/err" || code=$?
  same "$code" 2 "exit code of $*"
  same "$(head -n 1 "$run/err")" "$message" "what is said of $*"
}
refuses "gradsync: unknown flag --frob" --frob list
refuses "gradsync: unknown flag --frob" --frob x list
refuses "gradsync: unknown flag --frob" --frob=x
refuses "gradsync: unknown flag -x" -x list
refuses "gradsync: unknown flag --severr; did you mean --server?" --severr http://127.0.0.1:1 list
refuses "gradsync list: unknown flag --purge" --purge list
refuses "gradsync: unknown command 'lits'; did you mean 'list'?" --set steps.target=3 lits
grep -q -- --set <<<"$("$cli" help submit)" || fail "help"

claim "a server that is away is exit code 6"
code=0
"$cli" --server http://127.0.0.1:1 --timeout 0.2 list >/dev/null 2>"$run/err" || code=$?
same "$code" 6 "exit code"
[ "$(wc -l <"$run/err")" -le 3 ] || fail "more than three lines"

# A server of answers that are made up: `answer(path)` of FILE is what it says, as JSON.
cat >"$run/answers.py" <<'PYTHON'
import http.server, json, runpy, sys
answer = runpy.run_path(sys.argv[1])["answer"]
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = (json.dumps(answer(self.path)) + "\n").encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *words):
        pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
PYTHON
answering() { # NAME: $run/NAME.py, by $server
  python3 "$run/answers.py" "$run/$1.py" >"$run/$1.port" &
  pids+=("$!")
  wait_for 20 "a server of $1" test -s "$run/$1.port"
  server=http://127.0.0.1:$(cat "$run/$1.port")
}

claim "a plan is shown however much a server says"
cat >"$run/large_plan.py" <<'PYTHON'
def answer(path):
    return {"averages": [{"period": 10**15, "group_size": 10**15}] * 60, "buckets": []}
PYTHON
answering large_plan
"$cli" --server "$server" plan j-1 >"$run/plan" 2>"$run/err" || fail "plan: $(head -3 "$run/err")"
same "$(grep -o 'steps of 1000000000000000 ranks' "$run/plan" | wc -l)" 60 "averages"

claim "what a rank prints does not drive the terminal of who reads it"
cat >"$run/hostile.py" <<'PYTHON'
def answer(path):
    if "/logs" in path:
        return {"cursor": "1", "rank": 0, "host": "h\x1b]0;host\a", "text": "a\tb\x1b[2J\x7f\x9b31m\rc \u00e9"}
    return {"id": "j-1", "state": "failed", "reason": "r\x1b[1m", "message": "m\x1b[2J\nforged",
            "failure": {"hint": "h\a", "first": {"host": "x\x1b[0m", "rank": 1}, "log_tail": ["t\x1b[3m"]}}
PYTHON
answering hostile
hostile=$server
"$cli" --server "$hostile" logs j-1 >"$run/out" || fail "logs"
same "$(cat "$run/out")" "$(printf '[r0 h ]0;host ] a\tb [2J   31m c é')" "a line of the log"
"$cli" --server "$hostile" logs j-1 -o json | jq -e '.text | startswith("a\tb\u001b[2J")' >/dev/null || fail "JSON does not say it as it was"
"$cli" --server "$hostile" watch j-1 >/dev/null 2>"$run/err" || true
grep -q 'm \[2J forged' "$run/err" || fail "watch: $(cat -v "$run/err")"
if LC_ALL=C grep -q "$(printf '[\001-\010\013-\037\177]')" "$run/err"; then fail "control characters: $(cat -v "$run/err")"; fi

claim "all pages of an answer are shown as one"
cat >"$run/pages.py" <<'PYTHON'
import http.server, json, urllib.parse
LISTS = {"/v1/workers": "items", "/v1/jobs/j-1/workers": "items", "/v1/jobs/j-1/metrics": "ranks"}
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        url = urllib.parse.urlparse(self.path)
        page = int(urllib.parse.parse_qs(url.query).get("cursor", ["0"])[0])
        answer = {LISTS[url.path]: [{"id": f"w{page}", "rank": page}]}
        if page < 2:
            answer["next_cursor"] = str(page + 1)
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *words):
        pass
server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
PYTHON
python3 "$run/pages.py" >"$run/pages.port" &
pids+=("$!")
wait_for 20 "a server of pages" test -s "$run/pages.port"
pages() { "$cli" --server "http://127.0.0.1:$(cat "$run/pages.port")" "$@" 2>"$run/err" || fail "$*: $(head -3 "$run/err")"; }
same "$(pages workers -o name | tr '\n' ' ')" "w0 w1 w2 " "workers"
same "$(pages workers j-1 -o json | jq -c '[.items[].rank]')" "[0,1,2]" "workers of a job"
same "$(pages metrics j-1 -o json | jq -c '[[.ranks[].rank], .next_cursor]')" "[[0,1,2],null]" "metrics of a job"

claim "up starts a cluster and tells where"
"$cli" up --workers 2 --http 127.0.0.1:0 --data-dir "$run/up" --data-root "$run/root" >"$run/up.out" 2>"$run/logs/up.log" &
up_pid=$!
pids+=("$up_pid")
wait_for 60 "up" grep -q 'gradsync is up' "$run/up.out"
server=$(sed -n 's/^ *HTTP *//p' "$run/up.out")
export GRADSYNC_SERVER=$server
grep -q alive <<<"$("$cli" health)" || fail "health"
grep -q "^server" <<<"$("$cli" version)" || fail "version"
two_workers() { [ "$("$cli" workers -o name | sort | tr '\n' ' ')" = 'worker-1 worker-2 ' ]; }
wait_for 30 "two workers" two_workers

claim "submit prints the id alone, and --wait ends with the result"
mlp_job cli 30 2 >"$run/job.json"
id=$("$cli" submit "$run/job.json" --set steps.target=25 --set reducer.bucket_cap_bytes=8MiB --wait 2>"$run/err") || fail "submit: $(cat "$run/err")"
case $id in j-*) ;; *) fail "id: $id" ;; esac
same "$("$cli" show "$id" -o json | jq -r '"\(.state) \(.progress.step) \(.spec.reducer.bucket_cap_bytes)"')" "succeeded 25 [8388608]" "job"
same "$("$cli" list --all -o name)" "$id" "list"
same "$("$cli" list -o name)" "" "list of live jobs"
grep -q '^ID ' <<<"$("$cli" list --all)" || fail "table"
# Of whole outputs: a grep at the end of a pipe would leave while lines are still being written.
has_logs() { grep -q '^\[r' <<<"$("$cli" logs "$id" --rank all)"; }
wait_for 10 "logs, which come behind the job" has_logs
grep -q 'BUCKET.*HOOK *WIRE' <<<"$("$cli" plan "$id")" || fail "plan"
grep -q '^wire bytes ' <<<"$("$cli" plan "$id")" || fail "plan without what is sent"
grep -q '^25 ' <<<"$("$cli" checkpoints "$id")" || fail "checkpoints"
exported=$("$cli" checkpoints export "$id" "$run/all.safetensors" -o json) || fail "export"
same "$(jq -r '"\(.step) \(.parts) \(.bytes)"' <<<"$exported")" "25 1 $(stat -c %s "$run/all.safetensors")" "export"
code=0
"$cli" checkpoints export "$(jq -r .checkpoint <<<"$exported")/" "$run/all.safetensors" 2>"$run/err" || code=$?
same "$code" 4 "export into a file that is there: $(cat "$run/err")"
"$cli" checkpoints export --model "$(jq -r .checkpoint <<<"$exported")/" "$run/model.safetensors" --server http://127.0.0.1:1 >"$run/out" ||
    fail "export of a directory, without a server"
[ "$(stat -c %s "$run/model.safetensors")" -lt "$(stat -c %s "$run/all.safetensors")" ] || fail "the model alone is not smaller"
code=0
"$cli" checkpoints export "$id" 2>/dev/null || code=$?
same "$code" 2 "export without a file"
grep -q REASON <<<"$("$cli" events "$id")" || fail "events"
grep -q '^loss' <<<"$("$cli" metrics "$id" --series loss)" || fail "series"
"$cli" timeline "$id" --steps last:1 >"$run/timeline" || fail "timeline"
grep -q '^rank 1 on .*, step 24: ' "$run/timeline" || fail "timeline: $(cat "$run/timeline")"
grep -q '^buckets (allreduce)' "$run/timeline" || fail "hook: $(cat "$run/timeline")"
grep -q 'bucket 0 .*=' "$run/timeline" || fail "bars: $(cat "$run/timeline")"
"$cli" timeline "$id" --steps last:2 -o "$run/trace.json" || fail "trace file"
jq -e '.traceEvents | length > 10' "$run/trace.json" >/dev/null || fail "trace file: $(head -c 300 "$run/trace.json")"
"$cli" explain "$id" >"$run/explain" || fail "explain"
grep -q '^verdict  *not_running' "$run/explain" || fail "explain: $(cat "$run/explain")"
"$cli" watch "$id" 2>/dev/null || fail "watch of a succeeded job"
code=0
"$cli" sample "$id" >/dev/null 2>"$run/err" || code=$?
same "$code" 3 "sample that was not asked for"
grep -q 'not asked for' "$run/err" || fail "no reason: $(cat "$run/err")"

claim "exit codes tell what went wrong"
check_code() { # CODE COMMAND…
  local wanted=$1 code=0
  shift
  "$cli" "$@" >/dev/null 2>"$run/err" || code=$?
  same "$code" "$wanted" "exit code of $* ($(cat "$run/err"))"
  [ "$(wc -l <"$run/err")" -le 4 ] || fail "$*: more than four lines: $(cat "$run/err")"
}
check_code 3 show nothing
check_code 7 submit "$run/job.json" --set model.kind=mlq --set stepz=1
check_code 7 submit /dev/null
echo '{"model":{"kind":"mlp"},"steps":{"target":1000000},"world":{"min":9,"max":9}, /* too large */ }' |
  "$cli" submit - --set name=big >"$run/id" || fail "submit from standard input"
check_code 4 delete big
check_code 0 stop big --now
check_code 9 watch "$(cat "$run/id")"

claim "the end of up is the end of all"
kill -INT "$up_pid"
code=0
wait "$up_pid" || code=$?
same "$code" 0 "exit code of up"
code=0
curl -s -m 2 "$server/livez" >/dev/null || code=$?
[ "$code" -ne 0 ] || fail "the coordinator still answers"

claim "children die with a killed up"
"$cli" up --http 127.0.0.1:0 --data-dir "$run/up" >"$run/up2.out" 2>>"$run/logs/up.log" &
up_pid=$!
pids+=("$up_pid")
wait_for 60 "up" grep -q 'gradsync is up' "$run/up2.out"
children=$(pgrep -P "$up_pid" | tr '\n' ' ')
[ -n "$children" ] || fail "no children"
kill -9 "$up_pid"
gone() { for pid in $children; do ! kill -0 "$pid" 2>/dev/null || return 1; done; }
wait_for 60 "the end of the children" gone
