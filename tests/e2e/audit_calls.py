#!/usr/bin/env python3
"""Is the audit file complete? Calls that change something, by every role and by strangers, also such as are refused, from
several clients at once, while the coordinator is killed now and then: each call that was answered has its line, with who, what
and the answer; each that was not answered and may have begun has at least the line of its beginning, or never came to be.
    audit_calls.py --bin DIR --calls N [--kills K]
"""
import argparse, collections, glob, http.client, json, os, random, signal, subprocess, sys, tempfile, threading, time

def start(here):
    ports = os.path.join(here.dir, "ports")
    if os.path.exists(ports):
        os.remove(ports)
    here.log = open(os.path.join(here.dir, "log"), "ab")
    here.process = subprocess.Popen(
        [os.path.join(here.bin, "gradsync-coordinator"), "--http", f"127.0.0.1:{here.port}", "--control", "tcp://127.0.0.1:0", "--require-token",
         "--data-dir", os.path.join(here.dir, "data"), "--port-file", ports], stderr=here.log, stdout=here.log)
    for _ in range(1200):
        if os.path.exists(ports):
            break
        if here.process.poll() is not None:
            sys.exit("the coordinator ended: " + open(os.path.join(here.dir, "log")).read()[-2000:])
        time.sleep(0.1)
    here.port = int(json.load(open(ports))["http"].rsplit(":", 1)[1])

def call(connection, token, verb, path, body):
    headers = {"Content-Type": "application/json"} if body is not None else {}
    if token:
        headers["Authorization"] = "Bearer " + token
    connection.request(verb, path, body=json.dumps(body) if body is not None else None, headers=headers)
    answer = connection.getresponse()
    answer.read()
    return answer.status, answer.getheader("X-Request-Id"), answer.getheader("Location")

def choose(draw, number):
    job = {"name": f"n{number}", "model": {"kind": "mlp"}, "steps": {"target": 5}}
    return draw.choice([
        ("POST", "/v1/jobs", job), ("POST", "/v1/jobs", {"name": "Wrong"}), ("POST", f"/v1/jobs/n{number - 1}/stop", {"mode": "now"}),
        ("DELETE", f"/v1/jobs/n{number - 2}", None), ("POST", "/v1/jobs/nobody/replan", None), ("POST", "/v1/nowhere", {}),
        ("PUT", "/v1/jobs", {}), ("POST", "/v1/tokens", {"name": f"k{number}", "role": "viewer"}), ("DELETE", f"/v1/tokens/k{number - 1}", None),
    ])

def work(here, first, count):
    draw, connection = random.Random(first), None
    for number in range(first, first + count):
        who, (verb, path, body) = draw.choice(list(here.tokens)), choose(draw, number)
        try:
            if connection is None:
                connection = http.client.HTTPConnection("127.0.0.1", here.port, timeout=60)
            status, request, made = call(connection, here.tokens[who], verb, path, body)
            with here.lock:
                here.answers[request] = (who, verb, path, status, made)
                here.done += 1
        except (OSError, http.client.HTTPException):
            connection = None
            with here.lock:
                here.done += 1
                here.unanswered += 1
            time.sleep(0.05)

def read_lines(here, ending):
    lines = []
    for path in glob.glob(os.path.join(here.dir, "data", "audit.jsonl" + ending)):
        for text in open(path):
            try:
                lines.append(json.loads(text))
            except ValueError:
                sys.exit(f"{path}: a line that is none: {text[:200]}")
    return sorted(lines, key=lambda line: line["seq"])

def check_numbers(lines, what):
    numbers = [line["seq"] for line in lines]
    if numbers != list(range(1, len(numbers) + 1)):
        sys.exit(f"{what}: numbers with holes: {len(numbers)} lines up to {numbers[-1] if numbers else 0}")

def check(here):
    calls, strangers = read_lines(here, ""), read_lines(here, ".refused")
    calls, strangers = sorted(calls + read_lines(here, ".[0-9]"), key=lambda line: line["seq"]), \
        sorted(strangers + read_lines(here, ".refused.[0-9]"), key=lambda line: line["seq"])
    check_numbers(calls, "calls")
    check_numbers(strangers, "strangers")
    asked = {line["id"] for line in calls + strangers if line["event"] == "asked"}
    answered = {line["id"]: line for line in calls + strangers if line["event"] != "asked"}
    wrong = []
    for request, (who, verb, path, status, made) in here.answers.items():
        line = answered.get(request)
        if line is None:
            wrong.append(f"{request} has no line: {who} {verb} {path} {status}")
            continue
        known = here.tokens[who] and path != "/v1/nowhere" and verb != "PUT" and status != 401
        expected = {"method": verb, "path": path, "status": status, "name": who if known else None, "made": made}
        for key, value in expected.items():
            if line.get(key) != value:
                wrong.append(f"{request}: {key} is {line.get(key)}, not {value}")
        if known and status not in (403, 429) and request not in asked:
            wrong.append(f"{request}: its beginning is missing: {who} {verb} {path} {status}")
        if not line["from"].startswith("127.0.0.1:"):
            wrong.append(f"{request}: from {line['from']}")
    # Who may change nothing, or was told so, has no line among those who did.
    wrong += [f"{line['id']}: {line.get('role')} {line.get('status')} among the calls" for line in calls
              if line.get("role") in ("metrics", "viewer") or line.get("status") in (403, 429)]
    begun = [request for request in asked if request not in answered]
    if len(begun) > here.unanswered:
        wrong.append(f"{len(begun)} began and have no answer, and {here.unanswered} clients had none")
    if wrong:
        sys.exit("\n".join(wrong[:20]) + f"\n{len(wrong)} in all")
    if any("gs_" in json.dumps(line) for line in calls + strangers):
        sys.exit("a line has a secret")
    counts = collections.Counter(line["event"] for line in calls + strangers)
    print(f"{len(here.answers)} calls answered, {here.unanswered} not, {dict(counts)}, {len(begun)} began without an answer")

def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", required=True)
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--kills", type=int, default=2)
    parser.add_argument("--clients", type=int, default=4)
    here = parser.parse_args()
    here.port, here.lock, here.answers, here.done, here.unanswered = 0, threading.Lock(), {}, 0, 0
    with tempfile.TemporaryDirectory(prefix="gradsync-audit.") as here.dir:
        start(here)
        try:
            admin = open(os.path.join(here.dir, "data", "admin.token")).read().strip()
            connection = http.client.HTTPConnection("127.0.0.1", here.port, timeout=60)
            here.tokens = {"nobody": None, "forged": "gs_" + "A" * 43}
            for role in ("viewer", "operator", "admin"):
                connection.request("POST", "/v1/tokens", json.dumps({"name": role, "role": role}),
                                   {"Content-Type": "application/json", "Authorization": "Bearer " + admin})
                here.tokens[role] = json.load(connection.getresponse())["token"]
            each = here.calls // here.clients
            threads = [threading.Thread(target=work, args=(here, 1 + i * each, each)) for i in range(here.clients)]
            for thread in threads:
                thread.start()
            for kill in range(here.kills):
                while here.done < (kill + 1) * here.calls // (here.kills + 1) and any(t.is_alive() for t in threads):
                    time.sleep(0.01)
                here.process.send_signal(signal.SIGKILL)
                here.process.wait()
                start(here)
            for thread in threads:
                thread.join()
            if here.unanswered > here.calls // 2:
                sys.exit(f"{here.unanswered} of {here.calls} calls were not answered: this shows nothing")
            here.process.terminate()
            here.process.wait(60)
            check(here)
        finally:
            here.process.kill()
            here.process.wait()
            here.log.close()

main()
