#!/usr/bin/env python3
"""Draws which tests of the software CUDA machine run in which of its two modes.

    tests/draw.py SEED BUILD_DIR CTEST_SELECTION…

Of two tests NAME_strict and NAME_async one is drawn, by the seed and the name; the pattern that is printed, for
`ctest -E`, matches the others. Both are in tests/long.sh.
"""
import hashlib
import json
import subprocess
import sys

MODES = ("strict", "async")


def main():
    seed, build, selection = sys.argv[1], sys.argv[2], sys.argv[3:]
    listing = subprocess.run(["ctest", "--test-dir", build, "--show-only=json-v1", *selection],
                             check=True, capture_output=True)
    names = {test["name"] for test in json.loads(listing.stdout)["tests"]}
    left_out = []
    for name in sorted(names):
        stem = name.removesuffix("_" + MODES[0])
        if stem == name or f"{stem}_{MODES[1]}" not in names:
            continue
        drawn = hashlib.sha256(f"{seed} {stem}".encode()).digest()[0] % 2
        left_out.append(f"{stem}_{MODES[1 - drawn]}")
    print(f"^({'|'.join(left_out) or 'nothing'})$")


main()
