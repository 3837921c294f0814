#!/usr/bin/env python3
"""Jobs in a row: what a coordinator and a worker take does not grow with the jobs that have ended.

tests/e2e/jobs_in_a_row.py [--simulated] [--bin DIR] [--jobs 180] [--kept 60] [--marks 6] [--slack 1] [--most-ready 10]

A real coordinator with its API and a real worker; every job is submitted over HTTP, trains three steps in a process of its
own, saves a checkpoint and ends. With --simulated the worker is bench/control_worker.c, whose trainers are connections that say
what a trainer says and write a line, and save nothing: ten thousand jobs take minutes. At each mark nothing trains and the series of what ended have left /metrics: then memory,
descriptors, threads and the page are those of what is kept, not of what was. How long a start takes is measured with a
copy of the data, as a crash would leave them. From the mark on at which `--kept` ended jobs are reached everything has to be
flat; before it an ended job may take its card. Behind the last mark the coordinator is killed and started again, the worker
comes back, and a mark's jobs more have to fit as the others did.
"""
import argparse
import http.client
import json
import os
import pathlib
import random
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

KEEP_SERIES = 1  # second
LIVE = "queued,starting,running,recovering,paused,stopping"
MOST_WAITING = 32  # jobs, beside those that have slots
SPEC = {"model": {"kind": "mlp", "mlp": {"dims": [4, 4, 2]}}, "data": {"kind": "synthetic", "micro_batch": 2},
        "world": {"min": 1, "max": 1, "threads_per_rank": 1}, "steps": {"target": 3}}
# What an ended job may take: more would be what it left. Memory of a sanitizer's build is the sanitizer's.
CARD_BYTES = 26_000      # of memory, while it is kept
REST_BYTES = 1_000       # of memory, when others have taken its place
DISK_BYTES = 40_000      # of the data directory, its checkpoint and log counted, while it is kept
WORKER_BYTES = 1_000


class Program:
    def __init__(self, run, name, arguments):
        self.log = open(run / f"{name}.log", "a")
        self.process = subprocess.Popen([str(a) for a in arguments], stdout=self.log, stderr=self.log)

    def status(self, field):
        for line in pathlib.Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith(field + ":"):
                return int(line.split()[1])
        raise KeyError(field)

    def sample(self):
        return {"rss": self.status("VmRSS") * 1024, "threads": self.status("Threads"),
                "files": len(os.listdir(f"/proc/{self.process.pid}/fd"))}

    def computed(self):
        """Seconds of its main thread: a start does nothing in others before it is ready, and a busy machine does not lengthen it."""
        path = pathlib.Path(f"/proc/{self.process.pid}/task/{self.process.pid}/schedstat")
        return int(path.read_text().split()[0]) / 1e9

    def end(self, number):
        if self.process.poll() is None:
            self.process.send_signal(number)
        self.process.wait(60)
        self.log.close()


    def num_logs(self):
        """Logs of jobs that it has open."""
        folder, count = pathlib.Path(f"/proc/{self.process.pid}/fd"), 0
        for name in os.listdir(folder):
            try:
                count += "/jobs/" in os.readlink(folder / name)
            except OSError:
                pass  # closed meanwhile
        return count


class Server:
    """One connection to the API, made anew where it broke or was idle for long, as then the server closes it."""

    def __init__(self, address):
        self.address, self.connection, self.used = address, None, 0

    def ask(self, method, path, body=None):
        for attempt in (1, 2):
            try:
                idle, self.used = time.monotonic() - self.used, time.monotonic()
                if not self.connection or idle > 2:
                    self.connection = http.client.HTTPConnection(self.address, timeout=60)
                self.connection.request(method, path, body and json.dumps(body), {"Content-Type": "application/json"})
                answer = self.connection.getresponse()
                return answer.status, answer.read()
            except (OSError, http.client.HTTPException):
                self.connection = None
                if attempt == 2 or method != "GET":
                    raise

    def get(self, path):
        status, body = self.ask("GET", path)
        if status != 200:
            sys.exit(f"fail: GET {path}: {status} {body[:300]}")
        return body


def wait_for(seconds, what, condition):
    end = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > end:
            sys.exit(f"fail: waited in vain for: {what}")
        time.sleep(0.05)
    return value


def draw_port():
    """Below those that others get by chance for connections of theirs while a coordinator is away."""
    while True:
        port = random.randrange(10000, 32000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
                return port
            except OSError:
                pass  # it is somebody's


def start(arguments, run, data, name):
    """A coordinator, its server, and the seconds until it was ready."""
    ports = run / f"{name}.ports"
    old = json.loads(ports.read_text()) if ports.exists() else {
        "http": f"127.0.0.1:{draw_port()}", "control": f"tcp://127.0.0.1:{draw_port()}"}
    ports.unlink(missing_ok=True)
    begun = time.monotonic()
    program = Program(run, name, [arguments.bin / "gradsync-coordinator", "--data-dir", data, "--http", old["http"],
                                  "--control", old["control"], "--port-file", ports, "--keep-series", KEEP_SERIES,
                                  "--keep-jobs", arguments.kept])
    server = None
    while True:
        if program.process.poll() is not None or time.monotonic() - begun > 120:
            sys.exit(f"fail: {name} does not start: {(run / (name + '.log')).read_text()[-2000:]}")
        try:
            server = server or Server(json.loads(ports.read_text())["http"])
            if server.ask("GET", "/readyz")[0] == 200:
                return program, server, time.monotonic() - begun
        except (OSError, ValueError):
            time.sleep(0.002)


def count_live(server):
    page = json.loads(server.get(f"/v1/jobs?state={LIVE}&fields=id&limit=500"))
    return len(page["items"])


def run_jobs(arguments, server, first, count):
    for number in range(first, first + count):
        status, body = server.ask("POST", "/v1/jobs", dict(SPEC, name=f"row-{number + arguments.warm:05}"))
        if status != 201:
            sys.exit(f"fail: job {number}: {status} {body[:300]}")
        if number % MOST_WAITING == 0:
            wait_for(120, f"slots for job {number}", lambda: count_live(server) < MOST_WAITING)
    wait_for(120, "the end of all jobs", lambda: count_live(server) == 0)


def bytes_below(path):
    return sum(f.stat().st_blocks * 512 for f in path.rglob("*") if f.is_file())


def copy_or_link(source, target):
    """Files that a start only reads are linked."""
    is_linked = ("/jobs/" in source or "/checkpoints/" in source) and not source.endswith(".lock")  # that is held where it lies
    (os.link if is_linked else shutil.copyfile)(source, target)


def copy_data(data, copy):
    """Of a coordinator that lives: what it removes meanwhile may be missed."""
    for attempt in range(20):
        try:
            shutil.copytree(data, copy, copy_function=copy_or_link)
            return
        except (shutil.Error, FileNotFoundError) as error:
            if attempt == 19:
                sys.exit(f"fail: the data cannot be copied: {error}")
            shutil.rmtree(copy, ignore_errors=True)
            time.sleep(0.5)


def measure_start(arguments, run, data):
    copy, seconds, computed, rss = run / "copy", [], [], 0
    for _ in range(3):
        copy_data(data, copy)
        (run / "copy.ports").unlink(missing_ok=True)
        program, _, took = start(arguments, run, copy, "copy")
        computed.append(program.computed())
        rss = program.sample()["rss"]
        program.end(signal.SIGKILL)
        shutil.rmtree(copy)
        seconds.append(took)
    return statistics.median(seconds), statistics.median(computed), rss


def count_kept(server):
    count, cursor = 0, ""
    while True:
        page = json.loads(server.get(f"/v1/jobs?fields=id&limit=500{cursor}"))
        count += len(page["items"])
        if "next_cursor" not in page:
            return count
        cursor = f"&cursor={page['next_cursor']}"


def settle(arguments, coordinator, server):
    """Waits until what ended has left the page, its logs are closed, and what is too much is forgotten."""
    wait_for(120, "series of ended jobs to leave the page", lambda: b'job_id="' not in server.get("/metrics"))
    wait_for(300, "the forgetting of what is too much", lambda: count_kept(server) <= arguments.kept)
    wait_for(120, "logs of ended jobs to be closed", lambda: coordinator.num_logs() == 0)


def measure(arguments, run, data, programs, server, num_ended):
    coordinator, worker = programs
    settle(arguments, coordinator, server)
    seconds = []
    for _ in range(7):
        begun = time.monotonic()
        page = server.get("/metrics")
        seconds.append(time.monotonic() - begun)
    ready, computed, ready_rss = measure_start(arguments, run, data)
    mark = {"jobs": num_ended, **coordinator.sample(), "page": len(page), "page_ms": 1000 * statistics.median(seconds),
            "ready": ready, "computed": computed, "ready_rss": ready_rss, "disk": bytes_below(data),
            "worker_rss": worker.sample()["rss"], "worker_files": worker.sample()["files"],
            "worker_threads": worker.sample()["threads"]}
    print(f"{mark['jobs']:6} {mark['rss'] / 2**20:8.1f} {mark['files']:5} {mark['threads']:7} {mark['page'] / 1024:8.1f} "
          f"{mark['page_ms']:7.1f} {mark['ready']:7.3f} {mark['computed']:7.3f} {mark['ready_rss'] / 2**20:9.1f} {mark['disk'] / 2**20:8.1f} "
          f"{mark['worker_rss'] / 2**20:10.1f} {mark['worker_files']:5}", flush=True)
    return mark


def slope(marks, what):
    """Per ended job: the median over all pairs of marks, so that one mark alone does not decide."""
    pairs = [(b[what] - a[what]) / (b["jobs"] - a["jobs"]) for i, a in enumerate(marks) for b in marks[i + 1:]]
    return statistics.median(pairs) if pairs else 0


def check(arguments, marks):
    """What there is too much of."""
    failures = []

    def at_most(what, value, bound):
        print(f"  {what}: {value:.1f}, at most {bound}")
        if value > bound:
            failures.append(f"{what}: {value:.1f}, more than {bound}")

    first, last = marks[0], marks[-1]
    rising = [m for m in marks if m["jobs"] <= arguments.kept]
    full = [m for m in marks if m["jobs"] >= arguments.kept]
    slack = arguments.slack
    at_most("memory of a kept job, bytes", slope(rising, "rss"), CARD_BYTES * slack)
    at_most("memory of a job that is forgotten, bytes", slope(full, "rss"), REST_BYTES * slack)
    at_most("memory of a start, of a forgotten job, bytes", slope(full, "ready_rss"), arguments.most_start_bytes or REST_BYTES * slack)
    at_most("memory of the worker, of a job, bytes", slope(marks, "worker_rss"), WORKER_BYTES * slack)
    at_most("disk of a job, bytes", slope(marks, "disk"), DISK_BYTES * slack)
    for what in ("files", "threads", "worker_files", "worker_threads"):
        at_most(f"{what} more than at first", last[what] - first[what], 2)
    # Numbers get longer, and labels appear when something has happened for the first time.
    at_most("bytes of the page more than at first", last["page"] - first["page"], 1024)
    at_most("ms of the page more than at first", last["page_ms"] - first["page_ms"], arguments.most_page_ms)
    at_most("seconds of a start", max(m["ready"] for m in marks), arguments.most_ready)
    if len(full) > 1:
        at_most("ms that a start computes more than when as many were kept first", 1000 * (full[-1]["computed"] - full[0]["computed"]),
                arguments.most_more_ms)
        at_most("MiB more than when as many were kept first", (full[-1]["rss"] - full[0]["rss"]) / 2**20, arguments.most_more_mib)
    return failures


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", type=pathlib.Path, default=os.environ.get("GRADSYNC_BIN_DIR", "build/release/bin"))
    parser.add_argument("--jobs", type=int, default=180)
    parser.add_argument("--kept", type=int, default=60, help="--keep-jobs of the coordinator")
    parser.add_argument("--marks", type=int, default=6)
    parser.add_argument("--warm", type=int, default=20, help="jobs before the first mark's, which are not counted")
    parser.add_argument("--slots", type=int, default=4)
    parser.add_argument("--simulated", action="store_true", help="trainers that train nothing")
    parser.add_argument("--most-ready", type=float, default=10, help="seconds of a start")
    parser.add_argument("--most-more-ms", type=float, default=1000, help="that a start may compute more than the first one beside as many kept jobs")
    parser.add_argument("--most-more-mib", type=float, default=64, help="that memory may be more than then")
    parser.add_argument("--most-start-bytes", type=float, help="that a start may take more for a forgotten job; without it as in a run")
    parser.add_argument("--most-page-ms", type=float, default=20, help="that a page may take longer than the first one")
    parser.add_argument("--slack", type=float, default=1, help="of the bounds of bytes: a short row is mostly noise")
    arguments = parser.parse_args()
    arguments.bin = pathlib.Path(arguments.bin)
    run = pathlib.Path(tempfile.mkdtemp(prefix="gradsync-row-"))
    data, programs, failures = run / "data", [], ["it was interrupted"]
    begun = time.monotonic()
    try:
        coordinator, server, _ = start(arguments, run, data, "coordinator")
        control = json.loads((run / "coordinator.ports").read_text())["control"]
        command = [arguments.bin / "bench_control_worker", control, arguments.slots, 0.02] if arguments.simulated else [
            arguments.bin / "gradsync-worker", "--coordinator", control, "--name", "w", "--slots", arguments.slots, "--data-root", run]
        programs = [coordinator, Program(run, "worker", command)]
        print("  jobs  RSS MiB files threads page KiB page ms  ready s computed ready MiB disk MiB worker MiB files", flush=True)
        each, marks = arguments.jobs // arguments.marks, []
        run_jobs(arguments, server, -arguments.warm, arguments.warm)  # what a program needs once
        for i in range(arguments.marks):
            run_jobs(arguments, server, i * each, each)
            marks.append(measure(arguments, run, data, programs, server, (i + 1) * each))
        coordinator.end(signal.SIGKILL)
        programs[0], server, took = start(arguments, run, data, "coordinator")
        if arguments.simulated:  # it is a connection, and does not come back by itself
            programs[1].end(signal.SIGTERM)
            programs[1] = Program(run, "worker", command)
        print(f"killed and ready again in {took:.3f} s")
        run_jobs(arguments, server, arguments.marks * each, each)
        again = measure(arguments, run, data, programs, server, (arguments.marks + 1) * each)
        failures = check(arguments, marks)
        for what, bound in (("files", 2), ("threads", 2), ("page", 1024), ("rss", max(8 << 20, marks[-1]["rss"] // 4))):
            if again[what] - marks[-1][what] > bound:
                failures.append(f"{what} after the restart: {again[what]}, before it {marks[-1][what]}")
        print(f"{arguments.jobs + each} jobs in {time.monotonic() - begun:.0f} s")
    finally:
        for program in reversed(programs):
            program.end(signal.SIGTERM)
        if failures:
            print("\n".join(f"fail: {failure}" for failure in failures) + f"\nfiles in {run}", file=sys.stderr)
        else:
            shutil.rmtree(run)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
