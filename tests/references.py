#!/usr/bin/env python3
"""What comments and documents name is there. Fails on

* a path of a source, script or document that does not exist: gradsync/comm/comm.h, or comm.h alone;
* a name gs_… that no code has;
* decisions of docs/decisions.md that are not numbered 1, 2, 3 …
* tests that docs/faults.md names: a script's claim that no line of it begins with, another test's case that no code has
* a variable GRADSYNC_… that sources of the trainer name and worker/agent/rank_environment.c keeps from ranks
* rows of it about networks, messages and coordinators (N1, M1, C1) that none of their tests names

    references.py SOURCE_DIR
"""
import os
import re
import sys

CODE = (".c", ".h", ".cu", ".cuh", ".cc", ".cpp")
SCRIPTS = (".sh", ".py", ".cmake", ".txt", ".yaml")
# Of others: headers and a program that comments speak of.
FOREIGN = {"nccl.h", "cuda_runtime_api.h", "llm.c"}
# At the beginning of a word: not behind a variable, and not a part of an absolute path or an address.
FILE = re.compile(r"(?<![\w/.$*{}<>:-])((?:[A-Za-z0-9_]+/)*[A-Za-z0-9_-]+\.(?:c|h|cu|cuh|sh|py|cmake|md|yaml))\b(?![.(/])")
NAME = re.compile(r"\bgs_[a-z0-9_]+\b(?!\*)")


def files_of(root):
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(name for name in folders if name[0] != "." and name not in ("build", "shared"))
        for name in sorted(files):
            yield os.path.relpath(os.path.join(folder, name), root)


def split(path, line):
    """A line's code and its comment; a document is all comment."""
    if path.endswith(".md"):
        return "", line
    mark = "//" if path.endswith(CODE) else "#"
    at = line.find(mark)
    while at > 0 and line[at - 1] in "\"'$:{\\&(":  # of a string, of a variable
        at = line.find(mark, at + 1)
    return (line, "") if at < 0 else (line[:at], line[at:])


def read(root, path):
    with open(os.path.join(root, path), encoding="utf-8", errors="replace") as file:
        return file.read().splitlines()


def is_pattern(path):
    """x.c, test_NAME.c: words that stand for any."""
    stem = os.path.splitext(os.path.basename(path))[0]
    return len(stem) == 1 or (re.search("[A-Z]", stem) and not path.endswith(".md"))


def check_paths(path, comment, paths, layers):
    """A path is one from the root, or the end of one; what begins with a foreign folder is foreign."""
    for found in FILE.findall(comment):
        if found in FOREIGN or is_pattern(found) or f"/{found}" in paths:
            continue
        if "/" in found and found.split("/")[0] not in layers:
            continue
        yield f"{path}: there is no {found}"


def check_names(path, comment, known):
    """`gs_comm_` and the like are the beginning of many."""
    for found in NAME.findall(comment):
        if found not in known and not (found.endswith("_") and any(name.startswith(found) for name in known)):
            yield f"{path}: no code has {found}"


def check_decisions(root):
    numbers = [int(n) for n in re.findall(r"^(\d+)\. ", "\n".join(read(root, "docs/decisions.md")), re.MULTILINE)]
    # One may be missing: who asked for it did not need it.
    for before, number in zip(numbers, numbers[1:]):
        if number <= before:
            yield f"docs/decisions.md: {number} behind {before}"
            return
    if not numbers:
        yield "docs/decisions.md: there are no decisions"


def check_faults(root, texts):
    """`e2e_cuts`: N3 is a claim of tests/e2e/test_cuts.sh; the cases of other tests are functions."""
    functions = {name for path, lines in texts.items() if path.startswith("tests/") and path.endswith(".c")
                 for code, _ in lines for name in re.findall(r"[a-z0-9]+(?:_[a-z0-9]+)+(?=[(),])", code)}
    for number, line in enumerate(read(root, "docs/faults.md"), 1):
        for test, cases in re.findall(r"`((?:e2e|test|gpu)_[a-z0-9_]+)`(?:: ([^;|`]*))?", line):
            where, script = f"docs/faults.md:{number}", f"tests/e2e/test_{test[4:]}.sh"
            if test.startswith("e2e_"):
                claims = [code for code, _ in texts.get(script, []) if code.lstrip().startswith("claim ")]
                case = re.split(r"[,.(]", cases)[0].strip()
                if not claims or not any(re.search(rf'[" ]{re.escape(case)}', claim) for claim in claims):
                    yield f"{where}: {test} does not claim: {case}"
                continue
            for case in re.findall(r"\b[a-z0-9]+(?:_[a-z0-9]+){2,}\b", cases):
                if case not in functions:
                    yield f"{where}: no test has {case}"


def check_rows(root, texts):
    """A row's tests are in files of their names: test_fault_control_port in tests/fault/test_control_port.c."""
    for number, line in enumerate(read(root, "docs/faults.md"), 1):
        row = re.match(r"\| ([NMC]\d+) \|", line)
        tests = re.findall(r"`(?:e2e|test)_([a-z0-9_]+)`", line)
        if not row or not tests:
            continue
        files = [lines for path, lines in texts.items() if path.startswith("tests/")
                 for name in [re.sub(r"^test_", "", os.path.splitext(os.path.basename(path))[0])]
                 if any(test == name or test.endswith("_" + name) for test in tests)]
        word = re.compile(rf"\b{row[1]}\b")
        if not any(word.search(part) for lines in files for both in lines for part in both):
            yield f"docs/faults.md:{number}: none of its tests names {row[1]}"


def check_variables(texts):
    """What a rank reads of its environment, its agent has to let through."""
    listed = "worker/agent/rank_environment.c"
    variable = re.compile(r'"(GRADSYNC_[A-Z0-9_]+)"')
    passed = {name for code, _ in texts[listed] for name in variable.findall(code)}
    for path, lines in texts.items():
        layer, agents = path.startswith(("gradsync/", "kernels/", "core/", "worker/")), path.startswith("worker/agent/")
        # Programs' options are read by whoever starts them.
        if not layer or agents or path in ("core/config.c", "worker/main.c") or not path.endswith(CODE):
            continue
        for name in sorted({name for code, _ in lines for name in variable.findall(code)} - passed):
            if any(family.endswith("_") and name.startswith(family) for family in passed):
                continue
            yield f"{path}: no rank gets {name}: {listed} does not list it"


def main():
    root = sys.argv[1]
    files = list(files_of(root))
    ends = {"/" + "/".join(path.split("/")[i:]) for path in files for i in range(path.count("/") + 1)}
    folders = {part for path in files for part in path.split("/")[:-1]}
    texts = {path: [split(path, line) for line in read(root, path)]
             for path in files if path.endswith(CODE + SCRIPTS + (".md",))}
    known = {name for path, lines in texts.items() if path.endswith(CODE) for code, _ in lines for name in NAME.findall(code)}
    known |= {name for path in files if path.endswith((".inc", ".in", ".supp"))
              for line in read(root, path) for name in NAME.findall(line)}
    findings, num_comments = [*check_decisions(root), *check_faults(root, texts), *check_rows(root, texts), *check_variables(texts)], 0
    for path, lines in texts.items():
        for number, (_, comment) in enumerate(lines, 1):
            num_comments += bool(comment)
            findings += check_paths(f"{path}:{number}", comment, ends, folders)
            findings += check_names(f"{path}:{number}", comment, known)
    for finding in findings:
        print(finding)
    if num_comments < 1000:
        findings.append(f"{root}: only {num_comments} comments")
    if findings:
        sys.exit(1)
    print(f"{num_comments} lines of {len(texts)} files name what exists")


if __name__ == "__main__":
    main()
