#!/usr/bin/env python3
"""Makes a trace of the golden folder out of records, one for each life of a coordinator.

    settle.py TEST_TRACES NAME.jsonl.gz RAW…

Three steps. What decides nothing is cut out of what came in. The trace is played by TEST_TRACES, a build of the coordinator
that recorded it, before and after the cut: before, what goes out must be what the record says, but for the moments of an event that took
time. After, what goes out is what the trace expects from then on."""
import gzip
import json

import subprocess
import sys
import tempfile

# Of reports of steps: what decides about hangs and progress; "waits" where somebody asks for a diagnosis.
STEP_MEMBERS = ("generation", "step", "step_seconds", "wait_seconds", "rank")
# Nobody decides by them, and what they answer changes with every look.
UNREAD = ("GetMetrics", "GetSystem", "GetHealth", "GetJobSeries", "ReadLogs", "GetJobTimeline", "Timeline")


# Asked ten times a second by who waits for something: one in three will do.
POLLED = ("GetJob", "ListWorkers")


def set_wall_of_jobs(lines):
    """The id of a job has the millisecond in which it was made; the line of its request has it within two."""
    made = {}
    for line in lines:
        if line.get("row", [""])[0] == "put_job":
            made[line["row"][1] & 0x3FFFF] = line["row"][1] >> 18
    request = None
    for line in lines:
        if line.get("in") == "request":
            request = line if line["method"] == "CreateJob" else None
        elif line.get("in") == "drawn" and request:
            ms = made.get(int(line["number"]) & 0x3FFFF)
            if ms:
                request["wall_ms"] = ms
            request = None


def cut(lines):
    unread, seen = set(), 0
    for line in lines:
        method = line.get("method")
        seen += method in POLLED
        if method in UNREAD and line["call"] or method in POLLED and seen % 3:
            unread.add(line["call"])
    diagnosed = any(line.get("method") == "GetJobDiagnosis" for line in lines)
    members = STEP_MEMBERS + ("waits",) * diagnosed
    kept = []
    for line in lines:
        if line.get("call") in unread and line.get("call"):
            continue
        if line.get("method") == "Step":
            body = line["body"]
            line["body"] = {key: body[key] for key in members if key in body}
        if line.get("method") == "Log":
            line["body"]["records"] = [dict(record, text="…") for record in line["body"].get("records", [])]
        kept.append(line)
    return kept


def read(path):
    with open(path, encoding="utf-8") as file:
        return [json.loads(text) for text in file if text.endswith("\n")]


def write(path, lines):
    with open(path, "w", encoding="utf-8") as file:
        for line in lines:
            file.write(json.dumps(line, separators=(",", ":"), ensure_ascii=False) + "\n")


def settle(test, raw):
    """The text of one life."""
    lines = read(raw)
    set_wall_of_jobs(lines)
    with tempfile.TemporaryDirectory() as folder:
        whole, named, short, out = (f"{folder}/{name}.jsonl" for name in ("whole", "named", "short", "out"))
        write(whole, lines)
        print(raw)
        print(subprocess.run([test, whole], stdout=subprocess.PIPE, text=True, check=False).stdout, end="")
        # Now each write that came back has the name of what it did, by which it is found when there are fewer.
        subprocess.run([test, "--write", whole, named], check=True)
        write(short, cut(read(named)))
        subprocess.run([test, "--write", short, out], check=True)
        with open(out, "rb") as file:
            return file.read()


def main():
    test, name, *raws = sys.argv[1:]
    with open(name, "wb") as packed:
        with gzip.GzipFile(filename="", mode="wb", fileobj=packed, mtime=0, compresslevel=9) as stream:
            for raw in raws:
                stream.write(settle(test, raw))


if __name__ == "__main__":
    main()
