#!/usr/bin/env python3
"""What deploy/Containerfile* name is there, since the large ones are built by few: files and folders that are copied,
stages, presets, targets of CMake, groups of deploy/install-deps.sh, and in a comment the file itself and its targets.

    containerfiles.py SOURCE_DIR
"""
import json
import pathlib
import re
import sys


def instructions(text):
    """(line, word, rest) of each, continued lines joined, comments left out."""
    joined, begin = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("#") or not (line.strip() or joined):
            continue
        begin = begin if joined else number
        joined += line.strip()
        if joined.endswith("\\"):
            joined = joined[:-1] + " "
            continue
        word, _, rest = joined.partition(" ")
        yield begin, word.upper(), rest.strip()
        joined = ""


def check(root, path, presets, targets, groups):
    text, stages, args = path.read_text(), [], set()
    for line, word, rest in instructions(text):
        def bad(what):
            errors.append(f"{path.relative_to(root)}:{line}: {what}")
        for name in re.findall(r"\$\{(\w+)\}", rest) if word == "FROM" else []:
            if name not in args:
                bad(f"no ARG {name} before it")
        if word == "ARG":
            args.add(rest.partition("=")[0])
        elif word == "FROM":
            parts = rest.split()
            if not parts[0].startswith("$") and "/" not in parts[0] and parts[0] not in stages:
                bad(f"there is no stage {parts[0]}")
            if len(parts) != 3 or parts[1].upper() != "AS":
                bad("a stage has no name")
            stages.append(parts[-1])
        elif word in ("COPY", "ADD"):
            parts = rest.split()
            stage = next((part[7:] for part in parts if part.startswith("--from=")), None)
            if stage is not None and stage not in stages[:-1]:
                bad(f"--from={stage} is no stage before this one")
            for source in [] if stage else [part for part in parts[:-1] if not part.startswith("--")]:
                if not (root / source).exists():
                    bad(f"there is no {source}")
        elif word == "RUN":
            for preset in re.findall(r"--preset (\S+)", rest):
                if preset not in presets:
                    bad(f"there is no preset {preset}")
            for target in re.findall(r"--target ([a-z0-9_-]+)", rest):
                if target not in targets:
                    bad(f"there is no target {target}")
            for group in re.findall(r"install-deps\.sh (\w+)", rest):
                if group not in groups:
                    bad(f"install-deps.sh has no group {group}")
    for file, target in re.findall(r"^#.*-f (\S+) --target (\S+)", text, re.M):
        if root / file != path or target not in stages:
            errors.append(f"{path.relative_to(root)}: the command for {target} builds no stage of it")
    if not re.search(r"^#.*-f \S+ --target ", text, re.M):
        errors.append(f"{path.relative_to(root)}: no comment says how it is built")


root = pathlib.Path(sys.argv[1])
errors = []
presets = {preset["name"] for preset in json.loads((root / "CMakePresets.json").read_text())["configurePresets"]}
listed = [root / "CMakeLists.txt", *root.glob("*/CMakeLists.txt")]
targets = {name for path in listed for name in re.findall(r"add_(?:executable|custom_target)\((\S+)", path.read_text())}
groups = set(re.findall(r"^  \[(\w+)\]=", (root / "deploy/install-deps.sh").read_text(), re.M))
files = sorted(root.glob("deploy/Containerfile*"))
for path in files:
    check(root, path, presets, targets, groups)
print("\n".join(errors) if errors else f"{len(files)} container files name what there is")
sys.exit(bool(errors) or not files)
