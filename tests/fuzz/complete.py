#!/usr/bin/env python3
"""Every message of those who are not trusted is fuzzed: a worker's, its trainers', and of who enrols as one.

    tests/fuzz/complete.py ROOT

Such a method (rpc/schema/messages.c) has an input in the corpus of a target that reads by names of methods, or is another target's.
"""
import pathlib
import re
import sys

METHOD = re.compile(r'\{"(\w+)", GS_\w+, \w+, GS_ROLE_(?:AGENT|TRAINER|ENROL),')
BY_NAME = ('rpc_requests', 'worker_words')
OTHERS = {'StepRecord': 'step_record', 'Timeline': 'timeline_view'}


def inputs_of(root, target):
    for path in sorted((root / 'tests/fuzz/corpus' / target).iterdir()):
        yield path.read_text(errors='replace')


def main(root):
    methods = METHOD.findall((root / 'rpc/schema/messages.c').read_text())
    fuzzed = set()
    for target in BY_NAME:
        source = (root / f'tests/fuzz/fuzz_{target}.c').read_text()
        for text in inputs_of(root, target):
            fuzzed |= {name for name in re.findall(r'^(\w+) \{', text, flags=re.M) if f'"{name}"' in source}
    fuzzed |= {name for name, target in OTHERS.items() if any(inputs_of(root, target))}
    missing = [name for name in methods if name not in fuzzed]
    for name in missing:
        print(f'{name}: no target of tests/fuzz reads it: give it a row and an input in tests/fuzz/corpus')
    if len(methods) < 20:
        print(f'rpc/schema/messages.c: {len(methods)} methods of workers were found')
    return 1 if missing or len(methods) < 20 else 0


if __name__ == '__main__':
    sys.exit(main(pathlib.Path(sys.argv[1])))
