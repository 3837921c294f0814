#!/usr/bin/env python3
"""Who may ask what of the API, at the programs as they are started: every operation of the served /openapi.json, at the coordinator's
own API and at one that runs alone, encrypted, with every kind of credentials. What a route needs is what the document says of it; so a
route that is added is in here without a line. Whoever is refused has changed nothing, and stands in the audit.
    route_roles.py --bin DIR
"""
import argparse, collections, http.client, json, os, shutil, ssl, subprocess, sys, tempfile, time

ROLES = ["metrics", "viewer", "operator", "admin"]  # each may what those before it may
# What is for everybody; one more is a decision.
OPEN = {"/livez", "/readyz", "/healthz", "/openapi.json", "/problems/{slug}"}
# Such as would make something, for whom they are taken of; others may be empty.
BODIES = {"createJob": {"model": {"kind": "mlp"}, "steps": {"target": 5}}, "createToken": {"name": "made", "role": "viewer"},
          "stopJob": {"mode": "now"}, "previewPlan": {"tensors": [{"elements": 4}], "limits_bytes": [16]}}
# Why a request that may be made can come to nothing: of a job that nobody runs, where no worker is.
NOT_NOW = {"wrong_state", "not_ready", "not_found", "conflict", "gone", "validation"}
UNKNOWN = "gs_" + "A" * 43

class Door:
    """One of the two servers."""
    def __init__(self, here, name, port, audit, admin):
        self.here, self.name, self.port, self.audit, self.admin = here, name, port, audit, admin
        self.prefix = "a" if here.doors else "b"
        here.doors += 1
        self.connection, self.count, self.number, self.texts, self.refused, self.taken = None, 0, 0, {}, {}, {}

    def ask(self, verb, path, headers, body=None):
        """Status, headers and body; of a stream that has begun, nothing of it."""
        self.count += 1
        if self.connection is None:
            self.connection = http.client.HTTPSConnection("localhost", self.port, timeout=60, context=self.here.trust) if self.here.trust \
                else http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        if body is not None:
            headers = {**headers, "Content-Type": "application/json"}
        self.connection.request(verb, path, body=None if body is None else json.dumps(body), headers=headers)
        answer = self.connection.getresponse()
        is_stream = answer.status == 200 and verb != "HEAD" and answer.getheader("Content-Type", "").startswith("text/event-stream")
        text = b"" if is_stream else answer.read()
        if is_stream or answer.will_close:
            self.connection.close()
            self.connection = None
        return answer.status, answer.headers, text

    def do(self, verb, path, body=None):
        status, _, text = self.ask(verb, path, bearer(self.admin), body)
        if not 200 <= status < 300:
            sys.exit(f"{self.name}: {verb} {path}: {status} {text[:300]}")
        return json.loads(text) if text else {}

    def make_job(self, ended=False):
        self.number += 1
        job = self.do("POST", "/v1/jobs", {**BODIES["createJob"], "name": f"j{self.prefix}{self.number}"})["id"]
        if ended:
            self.do("POST", f"/v1/jobs/{job}/stop", {"mode": "now"})
        return job

    def make_token(self, role, **more):
        self.number += 1
        return self.do("POST", "/v1/tokens", {"name": f"t{self.number}", "role": role, **more})

    def state(self):
        """What a call that is refused must leave as it is."""
        jobs = sorted((job["id"], job["state"]) for job in self.do("GET", "/v1/jobs?limit=500")["items"])
        tokens = sorted((token["id"], token.get("revoked_at")) for token in self.do("GET", "/v1/tokens")["items"])
        return jobs, tokens

def bearer(token):
    return {"Authorization": "Bearer " + token}

def operations(document):
    """Verb, path, operation and media type of each way to ask for it."""
    for path, item in document["paths"].items():
        for verb, operation in item.items():
            types = [kind for code, response in operation["responses"].items() if code[0] == "2" for kind in response.get("content", {})]
            for accept in dict.fromkeys(types or ["*/*"]):
                yield verb.upper(), path, operation, accept
                if verb == "get":
                    yield "HEAD", path, operation, accept

def is_audited(verb, path, role):
    return verb not in ("GET", "HEAD") and (ROLES.index(role) >= ROLES.index("operator") or path == "/v1/session")

def body_of(operation):
    return BODIES.get(operation["operationId"], {}) if "requestBody" in operation else None

def check_refusal(door, verb, path, operation, accept, place, who, headers, status):
    what = f"{door.name}: {verb} {path} ({accept}) with {who}"
    got, answer, text = door.ask(verb, place, {**headers, "Accept": accept}, body_of(operation))
    if got != status:
        sys.exit(f"{what}: {got} in place of {status}: {text[:300]}")
    if (answer.get("WWW-Authenticate") is not None) != (status == 401):
        sys.exit(f"{what}: {status}, and WWW-Authenticate is {answer.get('WWW-Authenticate')}")
    if is_audited(verb, path, operation["x-role"]):
        door.refused[answer["X-Request-Id"]] = (what, status)
    if verb == "HEAD":
        return
    problem = json.loads(text)
    problem.pop("instance", None)
    # The same words at every route: of each kind of credentials all, and of all kinds what is not about them.
    same = {"401": {key: problem.get(key) for key in ("type", "title", "status", "code", "hint")}} if status == 401 else {}
    same[(who, operation["x-role"] if status == 403 else "")] = problem
    for key, value in same.items():
        if door.texts.setdefault(key, value) != value:
            sys.exit(f"{what}: {value} in place of {door.texts[key]}")

def check_admission(door, verb, path, operation, accept, role, headers):
    what = f"{door.name}: {verb} {path} ({accept}) as {role}"
    place = path.replace("{job}", door.make_job(verb == "DELETE") if "{job}" in path else "").replace("{token}", door.make_token("viewer")["id"] if "{token}" in path else "")
    door.number += 1
    body = body_of(operation)
    if operation["operationId"] in ("createJob", "createToken"):
        body = {**body, "name": f"made-{door.prefix}{door.number}"}
    status, answer, text = door.ask(verb, place, {**headers, "Accept": accept}, body)
    is_success = 200 <= status < 300 and str(status) in operation["responses"]
    problem = {} if is_success or not text else json.loads(text)
    if not is_success and (problem.get("code") not in NOT_NOW if verb != "HEAD" else status in (401, 403) or status >= 500 and status != 503):
        sys.exit(f"{what}: {status}: {text[:300]}")
    if is_audited(verb, path, operation["x-role"]):
        door.taken[answer["X-Request-Id"]] = (what, status)
    return is_success

def check_audit(door):
    """Each refusal is there with its status and no beginning; each call that was taken with both."""
    deadline = time.monotonic() + 60
    wanted = {**door.refused, **door.taken}
    while True:
        asked, ends = set(), {}
        for ending in ("", ".refused"):
            if os.path.exists(door.audit + ending):
                for line in map(json.loads, open(door.audit + ending)):
                    if line["event"] == "asked":
                        asked.add(line["id"])
                    else:
                        ends[line["id"]] = line.get("status")
        if wanted.keys() <= ends.keys() or time.monotonic() > deadline:
            break
        time.sleep(0.1)
    for request, (what, status) in wanted.items():
        if ends.get(request) != status or (request in asked) != (request in door.taken):
            sys.exit(f"{what}: in the audit are {ends.get(request)} in place of {status}, and {'a' if request in asked else 'no'} beginning")

def check_door(door):
    status, _, text = door.ask("GET", "/openapi.json", {})
    assert status == 200, status
    known = list(operations(json.loads(text)))
    # The last second of one that expires passes while others are asked.
    expires = door.make_token("admin", expires_in_seconds=1)["token"]
    revoked = door.make_token("admin")
    door.do("DELETE", f"/v1/tokens/{revoked['id']}")
    tokens = {role: door.make_token(role)["token"] for role in ROLES}
    strangers = {"no token": {}, "no token of ours": bearer("gs_short"), "another scheme": {"Authorization": "Basic YTpi"},
                 "an unknown token": bearer(UNKNOWN), "a revoked token": bearer(revoked["token"]), "an expired token": bearer(expires),
                 "an unknown session": {"Cookie": f"{'__Host-' if door.here.trust else ''}gradsync={UNKNOWN}", "X-Gradsync-CSRF": "1"}}
    job, bystander = door.make_job(), door.make_token("viewer")["id"]
    time.sleep(1.1)
    before, is_open, num_taken = door.state(), set(), collections.Counter()
    for verb, path, operation, accept in known:
        role, place = operation["x-role"], path.replace("{job}", job).replace("{token}", bystander).replace("{slug}", "forbidden")
        if (role == "none") != (operation["security"] == []) or role not in ROLES + ["none"]:
            sys.exit(f"{verb} {path}: x-role is {role}, security {operation['security']}")
        if role == "none":
            is_open.add((path, verb == "HEAD" or verb == "GET"))
            for who, headers in strangers.items():
                status = door.ask(verb, place, headers)[0]
                if status != 200:
                    sys.exit(f"{door.name}: {verb} {path} with {who}: {status}")
            continue
        for who, headers in strangers.items():
            check_refusal(door, verb, path, operation, accept, place, who, headers, 401)
        for lesser in ROLES[:ROLES.index(role)]:
            check_refusal(door, verb, path, operation, accept, place, lesser, bearer(tokens[lesser]), 403)
    if is_open != {(path, True) for path in OPEN}:
        sys.exit(f"{door.name}: open to everybody are {sorted(is_open)}")
    if door.state() != before:
        sys.exit(f"{door.name}: calls that were refused have changed {before} into {door.state()}")
    for verb, path, operation, accept in known:
        role = operation["x-role"]
        for may in ROLES[ROLES.index(role):] if role != "none" else []:
            num_taken[operation["operationId"]] += check_admission(door, verb, path, operation, accept, may, bearer(tokens[may]))
    never = {operation["operationId"] for _, _, operation, _ in known if operation["x-role"] != "none"} - {name for name in num_taken if num_taken[name]}
    check_audit(door)
    print(f"{door.name}: {len(known)} ways to ask, {door.count} requests, {len(door.refused)} refusals and {len(door.taken)} changes in the audit; "
          f"not now: {', '.join(sorted(never)) or 'none'}")

def await_port(path, process, log):
    for _ in range(1200):
        if os.path.exists(path) and os.path.getsize(path):
            return int(json.load(open(path))["http"].rsplit(":", 1)[1])
        if process.poll() is not None:
            break
        time.sleep(0.1)
    sys.exit("it does not start: " + open(log).read()[-2000:])

def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", required=True)
    here = parser.parse_args()
    processes = []
    with tempfile.TemporaryDirectory(prefix="gradsync-roles.") as directory:
        def at(name):
            return os.path.join(directory, name)
        def start(name, *arguments):
            log = open(at(name + ".log"), "wb")
            process = subprocess.Popen([os.path.join(here.bin, arguments[0]), *arguments[1:], "--http", "127.0.0.1:0", "--require-token", "--port-file",
                                        at(name + ".ports"), *encryption], stdout=log, stderr=log)
            processes.append(process)
            return await_port(at(name + ".ports"), process, at(name + ".log"))
        here.trust, here.doors, encryption = None, 0, []
        if shutil.which("openssl"):
            subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "30", "-subj",
                            "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-keyout", at("key"), "-out", at("cert")],
                           check=True, stderr=subprocess.DEVNULL)
            os.chmod(at("key"), 0o600)
            here.trust, encryption = ssl.create_default_context(cafile=at("cert")), ["--tls-cert", at("cert"), "--tls-key", at("key")]
        try:
            port = start("coordinator", "gradsync-coordinator", "--control", "tcp://127.0.0.1:0", "--require-key", "--data-dir", at("data"))
            control = json.load(open(at("coordinator.ports")))["control"]
            subprocess.run([os.path.join(here.bin, "gradsync"), "key", "new", "api", "--role", "admin", "--out", at("api.key")], check=True,
                           env={**os.environ, "GRADSYNC_DATA_DIR": at("data")}, stderr=subprocess.DEVNULL)
            check_door(Door(here, "the coordinator's", port, at("data/audit.jsonl"), open(at("data/admin.token")).read().strip()))
            port = start("api", "gradsync-api", "--coordinator", control, "--key", at("api.key"), "--tokens", at("tokens.json"), "--audit", at("api.audit"))
            check_door(Door(here, "one alone", port, at("api.audit"), open(at("admin.token")).read().strip()))
        finally:
            for process in processes:
                process.terminate()
            for process in processes:
                process.wait(60)

main()
