#!/usr/bin/env python3
"""Draws which of the tests that CTest selects run here; the pattern that is printed, for `ctest -E`, matches the others.

    tests/draw.py SEED BUILD_DIR SHARE CTEST_SELECTION…

Of two tests NAME_strict and NAME_async, which are one on the software CUDA machine in its two modes, one is drawn, by the
seed and the name. Of those that are labelled `sampled` SHARE percent are. All of them are in tests/long.sh.
"""
import hashlib
import json
import subprocess
import sys

MODES = ("strict", "async")


def lot(seed, name):
    return hashlib.sha256(f"{seed} {name}".encode()).digest()


def labels_of(test):
    return next((p["value"] for p in test["properties"] if p["name"] == "LABELS"), [])


def main():
    seed, build, share, selection = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4:]
    listing = subprocess.run(["ctest", "--test-dir", build, "--show-only=json-v1", *selection],
                             check=True, capture_output=True)
    tests = json.loads(listing.stdout)["tests"]
    names = {test["name"] for test in tests}
    left_out = []
    for name in sorted(names):
        stem = name.removesuffix("_" + MODES[0])
        if stem == name or f"{stem}_{MODES[1]}" not in names:
            continue
        left_out.append(f"{stem}_{MODES[1 - lot(seed, stem)[0] % 2]}")
    sampled = [test["name"] for test in tests if "sampled" in labels_of(test)]
    sampled.sort(key=lambda name: lot(seed, name))
    left_out += sampled[-(-len(sampled) * share // 100):]
    print(f"^({'|'.join(left_out) or 'nothing'})$")


main()
