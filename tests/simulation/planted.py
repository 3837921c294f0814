#!/usr/bin/env python3
"""Does the simulation see? Plants one bug after the other into the engine and looks for a history that finds it.

    planted.py [--histories N] [--starts N] [--only TEXT]... [--draw N] [--jobs N] [--table FILE] [--check] [--build DIR]
               [SOURCE_DIR]

A bug is a text of the sources and what stands there instead (plants.py); it is compiled into a copy of that file alone, so that no build
of the product knows of it. It is found when a history shows what must never be, or ends the program, which without the bug does neither.
Fails when one is not found. --starts: who is found within CHEAP histories is looked for from that many first seeds; said is the median.
--draw: so many of those that are found soon, by GRADSYNC_SEED; --build: into what is built there already. --check: only whether each text stands where the list says. --table: a row for each, for
docs/proofs.md.
"""
import argparse
import concurrent.futures
import glob
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile

from plants import BUGS, SOON

SOURCES = ["tests/simulation/*.c", "coordinator/model/*.c", "coordinator/rules/*.c", "coordinator/engine/*.c",
           "coordinator/engine/*/*.c", "coordinator/store/database/*.c", "coordinator/store/record/*.c", "coordinator/store/job_store.c",
           "coordinator/store/row_work.c", "coordinator/store/stored.c", "coordinator/store/transaction.c",
           "coordinator/store/work.c", "core/*.c", "rpc/schema/*.c", "rpc/plan/*.c", "rpc/json/*.c"]
FLAGS = ["-std=c11", "-D_GNU_SOURCE", '-DGRADSYNC_VERSION="planted"', "-DGS_GENERATION_BLOCK=2", "-O2", "-I."]
LIBRARIES = ["-Wl,--wrap=gs_now_ns", "-ljson-c", "-lsqlite3", "-lxxhash", "-lm", "-lpthread"]
FIRST = 2000  # histories; those that these do not show are looked for in more when all others have been
CHEAP = 2000
CHUNK = 500
CHUNK_SECONDS = 300  # a history takes milliseconds
BETWEEN_STARTS = 1000000


def sound_text(root, bug):
    """Path and text of the file that it is planted into; a text that is not there just once is an error of this list."""
    path = "coordinator/" + bug[1]
    with open(os.path.join(root, path), encoding="utf-8") as source:
        text = source.read()
    if text.count(bug[2]) != 1:
        raise SystemExit(f"plants.py: '{bug[0]}': {path} has this {text.count(bug[2])} times: {bug[2]}")
    return path, text


class Workshop:
    """The sources compiled once, and programs with one file in another form."""

    def __init__(self, root, folder, jobs):
        self.root, self.folder = root, folder
        self.compiler = ["ccache", "cc"] if shutil.which("ccache") else ["cc"]
        names = [os.path.relpath(path, root) for pattern in SOURCES for path in sorted(glob.glob(os.path.join(root, pattern)))]
        self.objects = {name: os.path.join(folder, name.replace("/", "_") + ".o") for name in names}
        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            list(pool.map(lambda item: self.compile(*item), self.objects.items()))
        self.sound = self.link(self.objects, os.path.join(folder, "sound"))

    def compile(self, source, output):
        subprocess.run([*self.compiler, *FLAGS, "-c", source, "-o", output], cwd=self.root, check=True)

    @staticmethod
    def link(objects, program):
        subprocess.run(["cc", *objects.values(), "-o", program, *LIBRARIES], check=True)
        return program

    def plant(self, bug, folder):
        path, text = sound_text(self.root, bug)
        copy = os.path.join(folder, "planted.c")
        with open(copy, "w", encoding="utf-8") as source:
            source.write(text.replace(bug[2], bug[3]))
        changed = os.path.join(folder, "planted.o")
        self.compile(copy, changed)
        return self.link({**self.objects, path: changed}, os.path.join(folder, "simulation"))


class BuiltWorkshop:
    """A build of the tests, of which only the planted file is compiled again, as it was there."""

    def __init__(self, root, build, folder):
        self.root, self.build, self.folder = root, build, folder
        self.sound = os.path.join(build, "tests", "test_simulation")
        told = subprocess.run(["ninja", "-C", build, "-t", "commands", "test_simulation"], stdout=subprocess.PIPE, text=True, check=True)
        self.commands = [line for line in told.stdout.splitlines() if " -o " in line]

    def plant(self, bug, folder):
        path, text = sound_text(self.root, bug)
        copy, changed = os.path.join(folder, "planted.c"), os.path.join(folder, "planted.o")
        program = os.path.join(folder, "simulation")
        with open(copy, "w", encoding="utf-8") as source:
            source.write(text.replace(bug[2], bug[3]))
        compiled = next(line for line in self.commands if re.search(rf" -c \S*/{re.escape(path)}$", line))
        compiled = re.sub(r" -MD -MT \S+ -MF \S+", "", compiled)
        compiled = re.sub(r" -o \S+ -c \S+$", f" -w -o {changed} -c {copy}", compiled)
        linked = re.sub(r" -o \S+", f" {changed} -o {program}", self.commands[-1], count=1)  # before the libraries that have the sound one
        for command in (compiled, linked):
            subprocess.run(command, shell=True, cwd=self.build, check=True)
        return program


def live(program, seed, histories):
    """What is wrong with these histories, and the seed of it where that is known; None: nothing."""
    try:
        done = subprocess.run([program, "--seed", str(seed), "--histories", str(histories), "--first"], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=CHUNK_SECONDS, text=True, errors="replace")
    except subprocess.TimeoutExpired:
        return "does not end", None
    for line in done.stdout.splitlines():
        if line.startswith("seed "):
            number, _, words = line[5:].partition(": ")
            return words, int(number)
    if done.returncode not in (0, 1):
        last = [line for line in done.stdout.splitlines() if line.strip()][-1:] or [""]
        return f"ends the program with {done.returncode}: {last[0]}", None
    return None


def narrow(program, seed, histories):
    """The seed that ends the program, or does not end."""
    while histories > 1:
        half = histories // 2
        if live(program, seed, half):
            histories = half
        else:
            seed, histories = seed + half, histories - half
    return seed


def find(workshop, program, first, histories):
    """After how many histories it is found, and what is said of that one; None: it is not."""
    seed, end = first, first + histories
    while seed < end:
        count = min(CHUNK, end - seed)
        found = live(program, seed, count)
        if not found:
            seed += count
            continue
        words, at = found
        if at is None:
            at = narrow(program, seed, count)
        if not live(workshop.sound, at, 1):
            return at - first + 1, at, words
        seed = at + 1  # a finding of the sound engine proves nothing
    return None


def try_bug(workshop, options, bug, first, histories):
    """None: not found."""
    with tempfile.TemporaryDirectory(dir=workshop.folder) as folder:
        program = workshop.plant(bug, folder)
        found = find(workshop, program, first, histories)
        if not found:
            print(f"{'MISSED ' if histories >= options.histories else 'not yet'} {histories:6d}  {bug[0]}", flush=True)
            return None
        after, seed, words = found
        counts = [after]
        for start in range(1, options.starts if after <= CHEAP else 1):
            again = find(workshop, program, first + start * BETWEEN_STARTS, options.histories)
            counts.append(again[0] if again else options.histories)
        median = int(statistics.median(counts))
        print(f"found   {median:6d}  {bug[0]}\n                 {counts} seed {seed}: {words[:160]}", flush=True)
        if options.table:
            with open(options.table, "a", encoding="utf-8") as table:
                table.write(f"| {bug[0]} | {median}{' of ' + str(len(counts)) if len(counts) > 1 else ''} | {words[:160]} |\n")
        return bug


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--histories", type=int, default=100000)
    parser.add_argument("--starts", type=int, default=1)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--draw", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--table")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--build")
    parser.add_argument("root", nargs="?", default=".")
    options = parser.parse_args()
    bugs = [bug for bug in BUGS if not options.only or any(text in bug[0] for text in options.only)]
    for bug in bugs:
        sound_text(options.root, bug)
    if options.check:
        print(f"{len(bugs)} bugs can be planted")
        return 0
    if options.draw:
        seed = int(os.environ.get("GRADSYNC_SEED", "0"))
        bugs = random.Random(seed).sample([bug for bug in bugs if bug[0] in SOON], options.draw)
        options.first += seed * BETWEEN_STARTS
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        workshop = BuiltWorkshop(options.root, options.build, folder) if options.build else Workshop(options.root, folder, options.jobs)
        missed = bugs
        for histories in sorted({min(FIRST, options.histories), options.histories}):
            found = list(pool.map(lambda bug: try_bug(workshop, options, bug, options.first, histories), missed))
            missed = [bug for bug in missed if bug not in found]
    print(f"{len(bugs) - len(missed)} of {len(bugs)} found")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
