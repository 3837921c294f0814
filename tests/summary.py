#!/usr/bin/env python3
"""What a run of tests/run.sh comes to: failures, what was skipped, where the time went.

    tests/summary.py FOLDER PHASE…

FOLDER holds, for each phase, what run.sh wrote: PHASE.built and PHASE.tested ("code since until"), PHASE.xml (CTest's
JUnit) and PHASE.report.<pid> of the sanitizers. Exit code 0: every phase was built, every test that it selects ran,
nothing failed and no process had anything to report. A test counts as skipped only when it said so itself.
"""
import pathlib
import re
import sys
import xml.etree.ElementTree as xml

SKIPPED_BY_ITSELF = "SKIP_RETURN_CODE"
CLAIM_SKIPPED = re.compile(r"^\[  SKIPPED \] (\w+)$", re.MULTILINE)


def read_times(path):
    """Exit code and seconds of one part of a phase; None where it never ended."""
    if not path.exists():
        return None, 0.0
    code, since, until = path.read_text().split()
    return int(code), float(until) - float(since)


def reason_of(case):
    """The line in which a test says why it does not run."""
    said = case.findtext("system-out") or ""
    line = next((line for line in said.splitlines() if "skip" in line.lower()), "it did not say why")
    return re.sub(r"^.*skipp?e?d?:? ?", "", line, count=1, flags=re.IGNORECASE) or line


class Phase:
    def __init__(self, folder, name):
        self.name = name
        self.failures, self.skips, self.tests = [], [], []
        self.num_passed = 0
        built, self.build_seconds = read_times(folder / f"{name}.built")
        tested, self.test_seconds = read_times(folder / f"{name}.tested")
        if built != 0:
            self.failures.append("the build")
            return
        self.read_tests(folder / f"{name}.xml")
        if tested != 0 and not self.failures:
            self.failures.append(f"ctest ended with {tested}")
        self.reports = sorted(folder.glob(f"{name}.report.*"))
        self.failures += [f"a sanitizer's report of process {path.suffix[1:]}" for path in self.reports]

    def read_tests(self, path):
        cases = list(xml.parse(path).iter("testcase")) if path.exists() and path.stat().st_size else []
        for case in cases:
            name, status = case.get("name"), case.get("status")
            self.tests.append((float(case.get("time")), f"{self.name}: {name}"))
            message = case.find("skipped").get("message") if case.find("skipped") is not None else ""
            if status == "run":
                self.num_passed += 1
                said = case.findtext("system-out") or ""
                claims = dict.fromkeys(CLAIM_SKIPPED.findall(said))
                self.skips += [f"{name}, the claim {claim}" for claim in claims]
            elif message.startswith(SKIPPED_BY_ITSELF):
                self.skips.append(f"{name}: {reason_of(case)}")
            else:
                self.failures.append(f"{name}{': ' + message.lower() if message else ''}")
        if not cases:
            self.failures.append("no test ran")

    def row(self):
        return (self.name, f"{self.build_seconds:.0f}", f"{self.test_seconds:.0f}", str(self.num_passed),
                str(len(self.failures)), str(len(self.skips)))


def print_table(rows):
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        cells = [cell.ljust(width) if i == 0 else cell.rjust(width)
                 for i, (cell, width) in enumerate(zip(row, widths))]
        print("  ".join(cells))


def main():
    folder = pathlib.Path(sys.argv[1])
    phases = [Phase(folder, name) for name in sys.argv[2:]]
    skipped_phases = (folder / "skipped").read_text().splitlines() if (folder / "skipped").exists() else []

    for phase in phases:
        for path in getattr(phase, "reports", [])[:5]:
            print(f"--- {phase.name}: {path.name}\n{path.read_text(errors='replace')[:6000]}")
    slowest = sorted((test for phase in phases for test in phase.tests), reverse=True)[:10]
    print("\nThe slowest tests, in seconds")
    print_table([(name, f"{seconds:.1f}") for seconds, name in slowest] or [("none", "")])
    print("\nSkipped")
    for skip in skipped_phases + [f"{phase.name}: {skip}" for phase in phases for skip in phase.skips]:
        print(f"  {skip}")
    print()
    print_table([("phase", "build s", "test s", "passed", "failed", "skipped")] + [phase.row() for phase in phases])
    print("A build lasts as long as the tests beside it let it: builds take what time is left.\n")
    failures = [f"{phase.name}: {failure}" for phase in phases for failure in phase.failures]
    for failure in failures:
        print(f"FAILED {failure}")
    num_passed = sum(phase.num_passed for phase in phases)
    num_skipped = len(skipped_phases) + sum(len(phase.skips) for phase in phases)
    print(f"{num_passed} passed, {len(failures)} failed, {num_skipped} skipped")
    return 0 if num_passed and not failures else 1


sys.exit(main())
