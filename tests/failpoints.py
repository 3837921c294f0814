#!/usr/bin/env python3
"""Every named failpoint of the product (core/failpoint.h) is armed by a test, and every one that a test arms is there.

    tests/failpoints.py ROOT

A test arms a name where it stands between quotes, or before `=kill`, `=error` and the like, in a file that sets
GRADSYNC_FAILPOINTS or has a rank die by name (tests/support/rank_death.h). Comments arm nothing.
"""
import pathlib
import re
import sys

PRODUCT = ('api', 'coordinator', 'core', 'gradsync', 'kernels', 'rpc', 'worker')
# Names that no test arms, each with the reason.
UNARMED = {}

PLACE = re.compile(r'\b(?:GS_FAILPOINT(?:_VOID)?|gs_failpoint_pass)\(\s*"([^"]*)"')
ARMS = re.compile(r'GRADSYNC_FAILPOINTS|rank_death\.h')
ACTION = r'=(?:kill|stop|error|sleep)'
# "comm.slice#1=kill@10", and the row {"comm.slice", 10, …} of a table of deaths.
ARMED = re.compile(r'\b([a-z_]+\.[a-z_]+)(?:#[\w$%{}]+)?' + ACTION)
ROW = re.compile(r'\{\s*"([a-z_]+\.[a-z_]+)",\s*\d+,\s*(?:\d+|true|false)\s*\}')
QUOTED = re.compile(r'"([a-z_]+\.[a-z_]+)"')


def sources(root, folders, suffixes):
    for folder in folders:
        for path in sorted((root / folder).rglob('*')):
            if path.suffix in suffixes:
                yield path


def without_comments(path):
    text = path.read_text(errors='replace')
    if path.suffix in ('.sh', '.py'):
        return re.sub(r'^\s*#.*$', '', text, flags=re.M)
    return re.sub(r'(?<!:)//.*$', '', text, flags=re.M)


def main(root):
    places, armed, mistaken = {}, set(), []
    for path in sources(root, PRODUCT, {'.c', '.cc', '.cu', '.h'}):
        if path.name != 'failpoint.h':
            for name in PLACE.findall(without_comments(path)):
                places.setdefault(name, path.relative_to(root))
    for path in sources(root, ['tests'], {'.c', '.cc', '.h', '.sh', '.py'}):
        text = without_comments(path)
        if not ARMS.search(text) or path == root / 'tests/failpoints.py':
            continue
        exact = set(ARMED.findall(text)) | set(ROW.findall(text))
        own = set(PLACE.findall(text))
        mistaken += [f'{path.relative_to(root)}: there is no failpoint "{name}"'
                     for name in sorted(exact - set(places) - own)]
        armed |= exact | set(QUOTED.findall(text))
    errors = mistaken
    for name, path in sorted(places.items()):
        if name not in armed and name not in UNARMED:
            errors.append(f'{path}: no test arms "{name}": arm it, or say why not in tests/failpoints.py')
        if name in armed and name in UNARMED:
            errors.append(f'tests/failpoints.py: "{name}" is armed: take it off the list')
    errors += [f'tests/failpoints.py: there is no failpoint "{name}"' for name in UNARMED if name not in places]
    print('\n'.join(errors) or f'{len(places)} failpoints, each armed')
    return bool(errors)


if __name__ == '__main__':
    sys.exit(main(pathlib.Path(sys.argv[1]).resolve()))
