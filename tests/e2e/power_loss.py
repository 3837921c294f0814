#!/usr/bin/env python3
"""What a disk has after the power went (power_loss.c).

power_loss.py begin ROOT SHADOW           all that is there has been forced out
power_loss.py cut ROOT SHADOW NEW_ROOT    makes what is left of it

A name that was not forced out is not there; a file whose bytes were not is empty.
"""
import os
import pathlib
import subprocess
import sys


def key_of(path):
    said = subprocess.run(["stat", "-c", "%i %W %w", path], capture_output=True, text=True, check=True).stdout.split()
    seconds, fraction = said[1], said[3].split(".")[1] if len(said) > 3 else "0"
    return f"{said[0]}.{seconds}.{int(fraction)}"


def build(shadow, key, target):
    names = shadow / key
    if not names.exists():
        return
    for line in names.read_text().splitlines():
        kind, inner, name = line.split(" ", 2)
        if kind == "d":
            (target / name).mkdir(mode=0o700)
            build(shadow, inner, target / name)
        elif kind == "f":
            kept = shadow / inner
            (target / name).write_bytes(kept.read_bytes() if kept.exists() else b"")
            os.chmod(target / name, 0o600)


def begin(shadow, path):
    kind = "d" if path.is_dir() else "f"
    if kind == "f":
        (shadow / key_of(path)).write_bytes(path.read_bytes())
    else:
        inner = sorted(path.iterdir())
        names = "".join(f"{'d' if p.is_dir() else 'f'} {key_of(p)} {p.name}\n" for p in inner)
        (shadow / key_of(path)).write_text(names)
        for p in inner:
            begin(shadow, p)


root, shadow = map(pathlib.Path, sys.argv[2:4])
if sys.argv[1] == "begin":
    shadow.mkdir()
    begin(shadow, root)
else:
    pathlib.Path(sys.argv[4]).mkdir(mode=0o700)
    build(shadow, key_of(root), pathlib.Path(sys.argv[4]))
