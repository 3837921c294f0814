#!/usr/bin/env python3
"""What strangers at the control port of a coordinator that asks for keys cost it: connections that say a HELLO of CURVE with a public
key of theirs and a box that does not open, one after the other, as fast as they are let. With --filter behind the packet filter of
docs/operations.md. Needs root: it has a network of its own.
    knocks.py --bin DIR [--seconds S] [--filter]
"""
import argparse, json, os, socket, subprocess, sys, tempfile, time

GREETING = b"\xff" + 8 * b"\0" + b"\x7f\x03\x00" + b"CURVE".ljust(20, b"\0") + b"\0" + 31 * b"\0"
FILTER = ["add table inet filter", "add chain inet filter input { type filter hook input priority 0 ; }",
          "add rule inet filter input tcp dport %d ct state new meter gradsync { ip saddr limit rate over 50/second burst 500 packets } drop"]


def knock(port):
    with socket.create_connection(("127.0.0.1", port), timeout=0.2) as fd:
        hello = b"\x05HELLO\x01\x00" + 72 * b"\0" + os.urandom(32) + 8 * b"\0" + os.urandom(80)
        fd.sendall(GREETING + b"\x04" + bytes([len(hello)]) + hello)
        while fd.recv(4096):
            pass


def cpu_of(pid):
    fields = open(f"/proc/{pid}/stat").read().rsplit(") ", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", required=True)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--filter", action="store_true")
    here = parser.parse_args()
    if not os.environ.get("KNOCKS_WORLD"):
        os.environ["KNOCKS_WORLD"] = "1"
        os.execvp("unshare", ["unshare", "--net", sys.executable] + sys.argv)
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    with tempfile.TemporaryDirectory(prefix="gradsync-knocks.") as directory:
        ports = os.path.join(directory, "ports")
        server = subprocess.Popen([os.path.join(here.bin, "gradsync-coordinator"), "--http", "127.0.0.1:0", "--control", "tcp://127.0.0.1:0",
                                   "--require-key", "--data-dir", os.path.join(directory, "data"), "--port-file", ports],
                                  stderr=subprocess.DEVNULL)
        try:
            while not os.path.exists(ports):
                time.sleep(0.05)
            port = int(json.load(open(ports))["control"].rsplit(":", 1)[1])
            for rule in FILTER if here.filter else []:
                subprocess.run(["nft", rule % port if "%d" in rule else rule], check=True)
            begin, cpu, counts = time.monotonic(), cpu_of(server.pid), {"heard": 0, "kept out": 0}
            while time.monotonic() - begin < here.seconds:
                try:
                    knock(port)
                    counts["heard"] += 1
                except TimeoutError:
                    counts["kept out"] += 1
                except OSError:
                    counts["heard"] += 1
            seconds = time.monotonic() - begin
            print(f"{counts['heard'] / seconds:.0f} handshakes a second, {counts['kept out'] / seconds:.0f} kept out; the coordinator takes "
                  f"{100 * (cpu_of(server.pid) - cpu) / seconds:.1f} % of a core, "
                  f"{1e6 * (cpu_of(server.pid) - cpu) / max(1, counts['heard']):.0f} µs for each")
        finally:
            server.terminate()
            server.wait(60)


main()
