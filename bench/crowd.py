#!/usr/bin/env python3
"""What a crowd of connections costs a job that trains: its steps in a second while the crowd is at the coordinator's HTTP address,
beside the same crowd at a listener that does nothing but let as many in and the oldest go, and without one; in turns.
    crowd.py --bin DIR [--connections N] [--rate N] [--rounds N] [--seconds S] [--threads N]
Connections are as in tests/e2e/crowd.py, and made again as they are cut, at most --rate in a second. With `chrt -r 1` in front nothing
else of the machine is in between.
"""
import argparse, collections, errno, json, os, resource, select, signal, socket, subprocess, tempfile, time, urllib.request

PLACES = 1024  # what the server has


def crowd(port, wanted, rate):
    poll, there, begun_at, made = select.epoll(), {}, time.monotonic(), 0
    words = [b"G", b"GET /v1/jobs HTTP/1.1\r\nHost: x\r\n", b"POST /v1/jobs HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nContent-Length: 99999\r\n\r\n" % port]
    while True:
        due = min(wanted - len(there), int((time.monotonic() - begun_at) * rate) - made)
        for _ in range(max(0, due)):
            fd = socket.socket()
            fd.setblocking(False)
            if fd.connect_ex(("127.0.0.1", port)) not in (0, errno.EINPROGRESS):
                fd.close()
                break
            there[fd.fileno()] = fd
            poll.register(fd.fileno(), select.EPOLLOUT | select.EPOLLRDHUP | select.EPOLLET)
            made += 1
        for number, what in poll.poll(0.005, 1000):
            try:
                if what & (select.EPOLLHUP | select.EPOLLERR | select.EPOLLRDHUP):
                    raise OSError
                there[number].send(words[number % 3])
            except OSError:
                poll.unregister(number)
                there.pop(number).close()


def listen(listener):
    there = collections.deque()
    while True:
        there.append(listener.accept()[0])
        if len(there) > PLACES:
            there.popleft().close()


def child(work, *args):
    pid = os.fork()
    if pid == 0:
        try:
            work(*args)
        finally:
            os._exit(1)
    return pid


def end(pid):
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", required=True)
    parser.add_argument("--connections", type=int, default=10000)
    parser.add_argument("--rate", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--threads", type=int, default=1)
    here = parser.parse_args()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with tempfile.TemporaryDirectory(prefix="gradsync-crowd.") as directory:
        ports = os.path.join(directory, "ports")
        log = open(os.path.join(directory, "log"), "wb")
        data = os.path.join(directory, "data")
        programs = [subprocess.Popen([os.path.join(here.bin, "gradsync-coordinator"), "--http", "127.0.0.1:0", "--control", "tcp://127.0.0.1:0",
                                      "--require-token", "--data-dir", data, "--port-file", ports], stdout=log, stderr=log)]
        try:
            while not os.path.exists(ports):
                time.sleep(0.05)
            told = json.load(open(ports))
            port = int(told["http"].rsplit(":", 1)[1])
            token = open(os.path.join(data, "admin.token")).read().strip()
            programs.append(subprocess.Popen([os.path.join(here.bin, "gradsync-worker"), "--coordinator", told["control"], "--slots", "1",
                                              "--data-root", directory], stdout=log, stderr=log))

            def ask(path, body=None):
                request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data=body and json.dumps(body).encode(),
                                                 headers={"Authorization": "Bearer " + token, "Content-Type": "application/json"})
                for _ in range(20):
                    try:
                        return json.load(urllib.request.urlopen(request, timeout=60))
                    except OSError as error:
                        last = error
                        time.sleep(0.1)
                raise last

            job = ask("/v1/jobs", {"model": {"kind": "gpt2", "gpt2": {"layers": 2, "heads": 4, "channels": 128}},
                                   "data": {"kind": "synthetic", "micro_batch": 2},
                                   "world": {"min": 1, "max": 1, "threads_per_rank": here.threads}, "steps": {"target": 10000000}})["id"]

            def step():
                return ask(f"/v1/jobs/{job}")["progress"]["step"]

            while step() < 20:
                time.sleep(0.1)
            listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
            rates = {"alone": [], "listener": [], "coordinator": []}
            for _ in range(here.rounds):
                for place in rates:
                    pids = []
                    if place == "listener":
                        pids = [child(listen, listener), child(crowd, listener.getsockname()[1], here.connections, here.rate)]
                    elif place == "coordinator":
                        pids = [child(crowd, port, here.connections, here.rate)]
                    time.sleep(1.5 if pids else 0.2)  # until its places are full
                    first, begin = step(), time.monotonic()
                    time.sleep(here.seconds)
                    last, past = step(), time.monotonic()
                    rates[place].append((last - first) / (past - begin))
                    for pid in pids:
                        end(pid)
                    time.sleep(0.5)
            print(f"# {here.connections} connections, {here.rate} a second; steps in a second, {here.rounds} rounds; load {os.getloadavg()[0]:.1f}")
            for place, seen in rates.items():
                print(f"{place:12} median {sorted(seen)[len(seen) // 2]:7.1f}   " + " ".join(f"{one:.1f}" for one in seen))
            ratios = sorted(a / b for a, b in zip(rates["coordinator"], rates["listener"]))
            print(f"coordinator / listener, pairs of a round: median {ratios[len(ratios) // 2]:.3f}, {ratios[0]:.3f} to {ratios[-1]:.3f}")
        finally:
            for program in reversed(programs):
                program.terminate()
            for program in reversed(programs):
                program.wait(60)
            log.close()


main()
