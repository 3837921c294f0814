#!/usr/bin/env python3
"""Runs a program under what a systemd unit says of it, without systemd: its filter of system calls, its user without
privileges, a root file system that is read-only but for its state, /proc as far as it may see it, no memory that is
written and then executed.

    under_unit.py UNIT --state DIR [--state DIR…] [--user NAME] -- PROGRAM [ARGUMENT…]

Wants root, libseccomp and systemd-analyze: 77 where one is missing. What it does not do it does not hide: the settings of
the unit that it knows nothing of are those that systemd alone makes (PrivateTmp, RestrictAddressFamilies, the like).
"""
import argparse
import ctypes
import errno
import os
import pwd
import re
import subprocess
import sys

CLONE_NEWNS, CLONE_NEWIPC = 0x20000, 0x8000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_REC, MS_PRIVATE = 1, 2, 4, 8, 4096, 16384, 1 << 18
SYS_MOUNT_SETATTR, AT_FDCWD, AT_RECURSIVE, MOUNT_ATTR_RDONLY = 442, -100, 0x8000, 1
PR_SET_KEEPCAPS, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT, PR_SET_MDWE = 8, 24, 38, 47, 65
PR_CAP_AMBIENT_RAISE = 2
CAPABILITIES = {"CAP_SETUID": 7}  # that a unit of ours asks for
SCMP_ACT_ALLOW, SCMP_ACT_ERRNO = 0x7FFF0000, 0x00050000

libc = ctypes.CDLL(None, use_errno=True)


def skip(why):
    print(f"SKIP under_unit: {why}")
    sys.exit(77)


def settings_of(path):
    """name → its values, in order; an empty one takes back those before, as systemd has it"""
    settings = {}
    with open(path, encoding="utf-8") as file:
        for line in file:
            found = re.match(r"(\w+)=(.*)", line)
            if found:
                settings.setdefault(found.group(1), []).append(found.group(2).strip())
    return settings


def calls_of(name, known={}):
    """the system calls of a group, with those of groups in it"""
    if not name.startswith("@"):
        return {name}
    if name not in known:
        known[name] = set()
        text = subprocess.run(["systemd-analyze", "syscall-filter", "--no-pager", name], check=True, capture_output=True, text=True).stdout
        for line in text.splitlines()[1:]:
            word = line.strip()
            if word and not word.startswith("#"):
                known[name] |= calls_of(word)
    return known[name]


def allowed_calls(lines):
    allowed = set(calls_of("@default"))
    for line in lines:
        takes = line.startswith("~")
        for word in line.lstrip("~").split():
            allowed = allowed - calls_of(word) if takes else allowed | calls_of(word)
    # Of a list that allows, these always are.
    return allowed | calls_of("@default")


def check(result, what):
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def load_filter(lines):
    seccomp = ctypes.CDLL("libseccomp.so.2")
    seccomp.seccomp_init.restype = ctypes.c_void_p
    context = ctypes.c_void_p(seccomp.seccomp_init(ctypes.c_uint32(SCMP_ACT_ERRNO | errno.EPERM)))
    for name in allowed_calls(lines):
        number = seccomp.seccomp_syscall_resolve_name(name.encode())
        if number >= 0:
            seccomp.seccomp_rule_add(context, ctypes.c_uint32(SCMP_ACT_ALLOW), number, 0)
    check(seccomp.seccomp_load(context), "seccomp")


def set_read_only(path, is_read_only, recursive):
    attributes = (ctypes.c_uint64 * 4)(MOUNT_ATTR_RDONLY if is_read_only else 0, 0 if is_read_only else MOUNT_ATTR_RDONLY, 0, 0)
    check(libc.syscall(SYS_MOUNT_SETATTR, AT_FDCWD, path.encode(), AT_RECURSIVE if recursive else 0, ctypes.byref(attributes),
                       ctypes.c_size_t(32)), f"mount_setattr {path}")


def enter(unit, states, user):
    whose = pwd.getpwnam(user)
    check(libc.unshare(CLONE_NEWNS | CLONE_NEWIPC), "unshare")
    check(libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None), "private mounts")
    for state in states:
        check(libc.mount(state.encode(), state.encode(), None, MS_BIND, None), state)
    if unit.get("ProtectSystem") == ["strict"]:
        set_read_only("/", True, True)
        for state in states:
            set_read_only(state, False, False)
        # Device files are no place to keep anything.
        set_read_only("/dev", False, True)
    options = []
    if unit.get("ProtectProc"):
        options.append(f"hidepid={unit['ProtectProc'][0]}")
    if unit.get("ProcSubset"):
        options.append(f"subset={unit['ProcSubset'][0]}")
    if options:
        check(libc.mount(b"proc", b"/proc", b"proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, ",".join(options).encode()), "proc")
    bounding = {CAPABILITIES[name] for line in unit.get("CapabilityBoundingSet", []) for name in line.split()}
    ambient = {CAPABILITIES[name] for line in unit.get("AmbientCapabilities", []) for name in line.split()}
    for capability in range(64):
        if capability not in bounding:
            libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
    libc.prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0)
    os.setgroups([])
    os.setresgid(whose.pw_gid, whose.pw_gid, whose.pw_gid)
    os.setresuid(whose.pw_uid, whose.pw_uid, whose.pw_uid)
    mask = sum(1 << capability for capability in ambient)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    check(libc.capset(header, (ctypes.c_uint32 * 6)(mask, mask, mask, 0, 0, 0)), "capset")
    for capability in ambient:
        check(libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, capability, 0, 0), "ambient capability")
    os.umask(int(unit.get("UMask", ["0022"])[-1], 8))
    check(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("unit")
    parser.add_argument("--state", action="append", default=[])
    parser.add_argument("--user", default="nobody")
    at = sys.argv.index("--")
    given, command = parser.parse_args(sys.argv[1:at]), sys.argv[at + 1:]
    if os.geteuid() != 0:
        skip("not root")
    try:
        ctypes.CDLL("libseccomp.so.2")
        calls_of("@default")
    except (OSError, subprocess.CalledProcessError) as error:
        skip(error)
    unit = settings_of(given.unit)
    filters = unit.get("SystemCallFilter", [])
    allowed_calls(filters)  # asked before nothing can be started any more
    try:
        enter(unit, given.state, given.user)
    except OSError as error:
        skip(error)
    # Kernels before 6.3 have no such word.
    if unit.get("MemoryDenyWriteExecute") == ["yes"]:
        libc.prctl(PR_SET_MDWE, 1, 0, 0, 0)
    environment = {name: text for name, text in os.environ.items() if not name.startswith("GRADSYNC_")}
    for line in unit.get("Environment", []):
        name, _, text = line.partition("=")
        environment[name] = text
    environment["STATE_DIRECTORY"] = given.state[0] if given.state else "/"
    load_filter(filters)
    os.execve(command[0], command, environment)


main()
