#!/usr/bin/env python3
"""What the shared library shows, three times the same:

* the functions that the public headers declare (cmake/public_headers.cmake);
* the names of gradsync/exports.txt, sorted: a change of the ABI is a change of this file;
* the symbols of libgradsync.so, as `nm -D` sees them.

    exports.py [--library build/…/libgradsync.so] SOURCE_DIR
    exports.py --write SOURCE_DIR      writes the list anew
"""
import argparse
import os
import re
import subprocess
import sys

LIST = "gradsync/exports.txt"


def public_headers(root):
    found, unread = [], ["gradsync/gradsync.h", "gradsync/extras.h"]
    while unread:
        header = unread.pop()
        if header not in found:
            found.append(header)
            with open(os.path.join(root, header), encoding="utf-8") as file:
                unread += re.findall(r'^#include "([^"]+)"', file.read(), re.MULTILINE)
    return sorted(found)


def without_braces(text):
    """what stands outside of structs, enums and bodies"""
    out, depth = [], 0
    for char in text:
        if char == "{":
            depth += 1
        elif char == "}":
            depth -= 1
            if not depth:
                out.append(";")
        elif not depth:
            out.append(char)
    return "".join(out)


def declared(root):
    """function → header"""
    names = {}
    for header in public_headers(root):
        with open(os.path.join(root, header), encoding="utf-8") as file:
            text = file.read()
        for shown in re.findall(r"^GS_BEGIN_DECLS$(.*?)^GS_END_DECLS$", text, re.DOTALL | re.MULTILINE):
            shown = re.sub(r"//[^\n]*|/\*.*?\*/", "", shown, flags=re.DOTALL)
            shown = re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", "", shown, flags=re.MULTILINE)
            for statement in without_braces(shown).split(";"):
                statement = re.sub(r"^GS_NODISCARD ", "", " ".join(statement.split()))
                if not statement or re.match(r"typedef|static|struct \w+$|enum", statement):
                    continue
                name = re.search(r"(gs_\w+) ?\(", statement)
                if name:
                    names[name.group(1)] = header
                elif statement.startswith("extern"):
                    names[re.search(r"(\w+)(\[.*\])?$", statement).group(1)] = header
    return names


def shown_by(library):
    text = subprocess.run(["nm", "-D", "--defined-only", "--format=posix", library], check=True,
                          capture_output=True, text=True).stdout
    names = {line.split()[0].split("@")[0] for line in text.splitlines()}
    return {name for name in names if not name.startswith("GRADSYNC_")}  # the version's own name


def compare(ours, our_name, theirs, their_name):
    yield from (f"{name}: {our_name}, but not {their_name}" for name in sorted(ours - theirs))
    yield from (f"{name}: {their_name}, but not {our_name}" for name in sorted(theirs - ours))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--library")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("source_dir")
    arguments = parser.parse_args()
    names = declared(arguments.source_dir)
    path = os.path.join(arguments.source_dir, LIST)
    if arguments.write:
        with open(path, "w", encoding="utf-8") as file:
            file.write("\n".join(sorted(names)) + "\n")
        return
    with open(path, encoding="utf-8") as file:
        lines = file.read().split("\n")[:-1]
    findings = list(compare(set(names), "declared in a public header", set(lines), f"listed in {LIST}"))
    if lines != sorted(set(lines)):
        findings.append(f"{LIST} is not sorted")
    findings += [f"{name}: exported without gs_" for name in lines if not name.startswith("gs_")]
    if arguments.library:
        findings += compare(shown_by(arguments.library), "shown by the library", set(lines), f"listed in {LIST}")
    for finding in findings:
        print(finding)
    if findings:
        print("a wanted change: tests/exports.py --write . ; docs/embedding.md, \"Versions\", says what raises GS_ABI_VERSION")
        sys.exit(1)
    print(f"{len(lines)} names")


if __name__ == "__main__":
    main()
