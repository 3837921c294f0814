#!/usr/bin/env python3
"""Draws which of the tests that CTest selects run here; the pattern that is printed, for `ctest -E`, matches the others.

    tests/draw.py SEED BUILD_DIR LABEL=SHARE[,LABEL=SHARE…] CTEST_SELECTION…

Of two tests NAME_strict and NAME_async, which are one on the software CUDA machine in its two modes, one is drawn, by the
seed and the name. Of those that have a LABEL, SHARE percent are. All of them are in tests/long.sh.
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
    seed, build, selection = sys.argv[1], sys.argv[2], sys.argv[4:]
    shares = {label: int(share) for label, share in (word.split("=") for word in sys.argv[3].split(","))}
    listing = subprocess.run(["ctest", "--test-dir", build, "--show-only=json-v1", *selection],
                             check=True, capture_output=True)
    tests = json.loads(listing.stdout)["tests"]
    names = {test["name"] for test in tests}
    left_out = set()
    for name in sorted(names):
        stem = name.removesuffix("_" + MODES[0])
        if stem == name or f"{stem}_{MODES[1]}" not in names:
            continue
        left_out.add(f"{stem}_{MODES[1 - lot(seed, stem)[0] % 2]}")
    for label, share in shares.items():
        sampled = [test["name"] for test in tests if label in labels_of(test) and test["name"] not in left_out]
        sampled.sort(key=lambda name: lot(seed, name))
        left_out.update(sampled[-(-len(sampled) * share // 100):])
    print(f"^({'|'.join(sorted(left_out)) or 'nothing'})$")


main()
