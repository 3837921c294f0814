#!/usr/bin/env python3
"""What a process that is run as somebody gets of another one and of its files. Says what it got; exits with 1 if that is anything.

    reach.py PID FILE…       as who is asked: setpriv --reuid …
"""
import ctypes
import os
import sys

PTRACE_ATTACH, PTRACE_SEIZE = 16, 0x4206
SYS_PROCESS_VM_READV, SYS_PIDFD_OPEN, SYS_PIDFD_GETFD = 310, 434, 438
libc = ctypes.CDLL(None, use_errno=True)
got = []


class Piece(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("bytes", ctypes.c_size_t)]


def try_file(path):
    try:
        with open(path, "rb") as file:
            file.read(1)
        got.append(f"reads {path}")
    except OSError:
        pass
    for flags, what in ((os.O_WRONLY, "writes"), (os.O_RDWR, "changes")):
        try:
            os.close(os.open(path, flags))
            got.append(f"{what} {path}")
        except OSError:
            pass


def try_proc(pid):
    for name in ("mem", "environ", "auxv", "maps", "smaps", "pagemap", "syscall", "personality"):
        try:
            with open(f"/proc/{pid}/{name}", "rb") as file:
                # Of memory the first bytes are nobody's; being let in is enough.
                if name != "mem":
                    file.read(1)
            got.append(f"opens /proc/PID/{name}")
        except OSError:
            pass
    for name in ("fd", "map_files"):
        try:
            for entry in os.listdir(f"/proc/{pid}/{name}"):
                got.append(f"sees /proc/PID/{name}/{entry}")
                break
        except OSError:
            pass
    for name in ("exe", "root", "cwd", "ns/net"):
        try:
            os.readlink(f"/proc/{pid}/{name}")
            got.append(f"follows /proc/PID/{name}")
        except OSError:
            pass


def try_calls(pid):
    for request in (PTRACE_ATTACH, PTRACE_SEIZE):
        # Whom it traces is let go by its end.
        child = os.fork()
        if child == 0:
            os._exit(libc.ptrace(request, pid, None, None) == 0)
        if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
            got.append(f"traces it ({request:#x})")
    into = ctypes.create_string_buffer(16)
    here = Piece(ctypes.cast(into, ctypes.c_void_p), 16)
    # Asked about who may before it is looked what is there: EFAULT is being let in.
    there = Piece(0x1000, 16)
    ctypes.set_errno(0)
    if libc.syscall(SYS_PROCESS_VM_READV, pid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0) >= 0 or ctypes.get_errno() == 14:
        got.append("reads its memory (process_vm_readv)")
    pidfd = libc.syscall(SYS_PIDFD_OPEN, pid, 0)
    for number in range(64):
        fd = libc.syscall(SYS_PIDFD_GETFD, pidfd, number, 0) if pidfd >= 0 else -1
        if fd >= 0:
            got.append(f"takes its descriptor {number}")
            break


def main():
    pid = int(sys.argv[1])
    for path in sys.argv[2:]:
        try_file(path)
    try_proc(pid)
    try_calls(pid)
    for what in got:
        print(what)
    sys.exit(1 if got else 0)


main()
