#!/usr/bin/env python3
"""How long a coordinator takes from its start to ready, with many ended jobs and some that train.

bench/restart.py [--build build/release] [--ended 10000] [--running 100] [--starts 5] [--most SECONDS]

A data directory is made with the rows, logs and series that such jobs leave: of each ended job a record as a real one has
it, an event and 200 steps of its curves; of each running one 64 ranks, and curves of a week. Then the program is started,
and asked until GET /readyz says 200; files are in the page cache, as after a crash of the process. The first start is told
apart: it finds rows without cards, as a version that knew none has left them, reads each whole and makes them, once. Of the
others also how much of that time the loop's thread computed, and how long it was ready to and had no core: a start that
takes long because the machine does something else says so. With --most it is a test: exit code 1 when the median is above.
"""
import argparse
import json
import os
import pathlib
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

BASE32 = "0123456789abcdefghjkmnpqrstvwxyz"
STEPS_OF_WEEK = 200_000


def id_text(number):
    """As gs_job_id_format: Crockford's alphabet, 12 digits of 5 bits from the top."""
    return "j-" + "".join(BASE32[number >> (55 - 5 * i) & 31] for i in range(12))


def start(arguments, data):
    ports = data / "ports"
    ports.unlink(missing_ok=True)
    begun = time.monotonic()
    program = subprocess.Popen([arguments.build / "bin" / "gradsync-coordinator", "--data-dir", data, "--http", "127.0.0.1:0",
                                "--control", "tcp://127.0.0.1:0", "--port-file", ports],
                               stderr=open(data / "log", "w"))
    while True:
        if program.poll() is not None or time.monotonic() - begun > 120:
            sys.exit(f"restart: the coordinator does not start: {(data / 'log').read_text()[-2000:]}")
        try:
            http = json.loads(ports.read_text())["http"]
            with urllib.request.urlopen(f"http://{http}/readyz", timeout=60) as answer:
                if answer.status == 200:
                    return program, http, time.monotonic() - begun
        except (OSError, ValueError):
            time.sleep(0.002)


def stop(program):
    program.send_signal(signal.SIGTERM)
    program.wait(60)


def ask(http, path, body=None):
    request = urllib.request.Request(f"http://{http}{path}", data=body and json.dumps(body).encode(),
                                     headers={"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return answer.read()


def loop_seconds(program):
    """What its main thread has computed, and has waited for a core."""
    computed, waited = pathlib.Path(f"/proc/{program.pid}/task/{program.pid}/schedstat").read_text().split()[:2]
    return int(computed) / 1e9, int(waited) / 1e9


def cpu_seconds(program):
    """Of all its threads, in its code and the kernel's: what a busy machine changes least."""
    ticks = pathlib.Path(f"/proc/{program.pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13]
    return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")


def kilobytes(program, field):
    for line in pathlib.Path(f"/proc/{program.pid}/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1])
    return 0


def tensors_of(layers):
    names = [f"layers.{i}.{part}" for i in range(layers)
             for part in ("ln1.weight", "ln1.bias", "attn.weight", "attn.bias", "ln2.weight", "ln2.bias", "mlp.weight", "mlp.bias")]
    return [{"name": name, "elements": 262144, "offset_bytes": 1048576 * i} for i, name in enumerate(names)]


def plan_of():
    tensors = tensors_of(6)
    buckets = [{"index": i, "bytes": 4194304, "limit_bytes": 4194304, "dtype": "fp32", "device": 0, "position": i,
                "hook": "allreduce", "compressed_tensors": 0, "elements": 1048576, "elements_sent": 1048576,
                "wire_bytes": 4194304, "ends": "limit", "why": "the next parameter would be above the limit",
                "expected_ready": {"first": 4 * i, "last": 4 * i + 3}, "tensors": tensors[4 * i:4 * i + 4]} for i in range(12)]
    return {"revision": 2, "reason": "ready_order", "hash": "xxh3:1f07d5a4064b37bfffb1bcb07ca3ff7c", "world_size": 2,
            "since_step": 2, "total_bytes": 50331648, "total_wire_bytes": 50331648, "buckets": buckets}


def record_of(spec, number, now_ms, ranks, ended):
    workers = [{"rank": r, "worker": f"w{r}", "host": "host", "slot": 0, "device": "cpu", "pid": 1000 + r, "generation": 1,
                "state": "exited", "step": 200, "heartbeat_age_seconds": 0.04, "lag_seconds": 0.0005,
                "resident_memory_bytes": 12533760, "exit_code": 0} for r in range(ranks)]
    record = {"spec": dict(spec, name=f"job-{number:06}"), "state": "succeeded" if ended else "running",
              "reason": "TargetReached" if ended else "Training", "message": "200 steps are done", "created_ms": now_ms - 60000,
              "started_ms": now_ms - 50000, "ended_ms": now_ms if ended else 0, "state_since_ms": now_ms, "age_ms": 60000,
              "version": 9, "stop_asked": False, "stop_outcome": "cancelled", "stop_reason": "", "generation": 1,
              "world_size": ranks, "step": 200, "committed": True, "plan_revision": 2,
              "plan_facts": {"hash": "xxh3:1f07d5a4064b37bfffb1bcb07ca3ff7c", "reason": "ready_order", "since_step": 2,
                             "num_buckets": 12},
              "plan": plan_of(), "plan_rebuilds": {"ready_order": 1}, "ready_order": list(range(48)),
              "plan_history": [{"revision": 1, "reason": "size_based", "hash": "xxh3:56", "step": 0, "num_buckets": 12,
                                "at": "2026-11-23T02:27:19.921Z"}]}
    if ended:
        record["final_workers"] = workers
    else:
        record["run"] = {"phase": "training", "generation": 1, "base_step": 0, "step": 200, "draining": False, "saving": False,
                         "members": [{"worker": f"w{r // 8}", "host": f"h{r // 8}", "boot_id": "b", "slot": r % 8, "rank": r,
                                      "pid": 1000 + r, "incarnation": str(number << 20 | 2 * r + 1),
                                      "launch_token": str(number << 20 | 2 * r + 2), "device": "cpu", "device_uuid": ""}
                                     for r in range(ranks)]}
    return json.dumps(record, separators=(",", ":"))


def curve(steps):
    return "".join(f'{{"step":{s},"loss":{4 / (1 + s / 50):.6f},"grad_norm":0.81,"lr":0.0003,"step_seconds":0.012,'
                   f'"tokens_per_second":81920.0,"comm_exposed_seconds":0.001,"overlap_ratio":0.93}}\n' for s in steps)


def fill(arguments, data):
    program, http, _ = start(arguments, data)
    created = json.loads(ask(http, "/v1/jobs", {"name": "template", "model": {"kind": "mlp"}, "steps": {"target": 200},
                                                "world": {"min": 1, "max": 64}}))
    spec = json.loads(ask(http, f"/v1/jobs/{created['id']}"))["spec"]
    stop(program)
    base = sqlite3.connect(data / "gradsync.db")
    base.execute("DELETE FROM job")
    now_ms, first = int(time.time() * 1000), (int(time.time() * 1000) - 10_000_000) << 18
    short, long = curve(range(200)), curve(range(0, STEPS_OF_WEEK, 10))
    for i in range(arguments.ended + arguments.running):
        ended, number = i < arguments.ended, first + (i << 18)
        base.execute("INSERT INTO job VALUES(?, ?)", (number, record_of(spec, i, now_ms, 2 if ended else 64, ended)))
        base.execute("INSERT INTO event VALUES(?, ?, ?)", (i + 1000, number, json.dumps(
            {"sequence": i + 1000, "at": "2026-11-23T02:27:19.921Z", "job": id_text(number), "reason": "JobSucceeded",
             "severity": "info", "message": "200 steps are done"})))
        directory = data / "jobs" / id_text(number)
        directory.mkdir(parents=True)
        (directory / "metrics.jsonl").write_text(short if ended else long)
        (directory / "log-0.ndjson").write_text('{"cursor":1,"key":"0000000000000001","text":"started"}\n')
    base.commit()
    base.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build/release"))
    parser.add_argument("--ended", type=int, default=10000)
    parser.add_argument("--running", type=int, default=100)
    parser.add_argument("--starts", type=int, default=5)
    parser.add_argument("--most", type=float, help="seconds; exit code 1 when the median is above")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gradsync-restart-") as name:
        data = pathlib.Path(name)
        fill(arguments, data)
        size = os.path.getsize(data / "gradsync.db") / 2**20
        seconds, loops, cpus = [], [], []
        for _ in range(arguments.starts + 1):
            program, http, took = start(arguments, data)
            seconds.append(took)
            loops.append(loop_seconds(program))
            cpus.append(cpu_seconds(program))
            rss, page = kilobytes(program, "VmRSS:") / 1024, len(ask(http, "/metrics")) / 1024
            files = len(os.listdir(f"/proc/{program.pid}/fd"))
            program.kill()
            program.wait()
        first = seconds.pop(0)
        slowest = loops[1:][seconds.index(max(seconds))]
        median = statistics.median(seconds)
        print(f"ended={arguments.ended} running={arguments.running} database_mib={size:.0f} ready_seconds={median:.3f} "
              f"max={max(seconds):.3f} cpu_seconds={statistics.median(cpus[1:]):.2f} computed_in_max={slowest[0]:.3f} no_core_in_max={slowest[1]:.3f} first={first:.3f} rss_mib={rss:.0f} page_kib={page:.0f} files={files}")
        if arguments.most and median > arguments.most:
            sys.exit(f"restart: {median:.3f} s, more than {arguments.most}")


if __name__ == "__main__":
    main()
