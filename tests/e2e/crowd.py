#!/usr/bin/env python3
"""Many connections of nobody: silent ones, ones that begin a request and never end it, ones that drip, made anew as often as they are
cut. Whoever has a token is answered all the same, each time by a new connection and also by one that he keeps; where the machine is so
busy that he did not come to say who he is in time, when he tries again, unless --once.
    crowd.py --bin DIR --connections N [--seconds S] [--most-ms MS] [--once]
"""
import argparse, errno, http.client, json, os, resource, select, socket, subprocess, sys, tempfile, threading, time

def crowd(port, wanted, stop, made):
    """As many as the server and the system bear, of `wanted` at a time."""
    poll, there = select.epoll(), {}
    begun = [b"", b"GET /v1/jobs HTTP/1.1\r\nHost: x\r\n", b"POST /v1/jobs HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nContent-Length: 99999\r\n\r\n" % port]
    while not stop.is_set():
        for _ in range(min(200, wanted - len(there))):
            fd = socket.socket()
            fd.setblocking(False)
            try:
                code = fd.connect_ex(("127.0.0.1", port))
            except OSError as error:
                code = error.errno
            if code not in (0, errno.EINPROGRESS):
                fd.close()
                break
            there[fd.fileno()] = fd
            poll.register(fd.fileno(), select.EPOLLOUT | select.EPOLLRDHUP | select.EPOLLET)
            made[0] += 1
        for number, what in poll.poll(0.01, 1000):
            fd = there[number]
            try:
                if what & (select.EPOLLHUP | select.EPOLLERR | select.EPOLLRDHUP):
                    raise OSError
                fd.send(begun[number % 3] or b"G")
            except OSError:
                poll.unregister(number)
                there.pop(number).close()
        made[1] = max(made[1], len(there))
    for fd in there.values():
        fd.close()

# Who asks comes from another loopback address than the crowd, which is the same neighbour to the server: the crowd uses each of its
# ports again and again, and where the server's end of one has not heard yet that it is closed, Linux answers a SYN from there with a reset.
OWN = ("127.0.0.9", 0)

def connect(port):
    return http.client.HTTPConnection("127.0.0.1", port, timeout=60, source_address=OWN)

def ask(connection, token):
    connection.request("GET", "/v1/jobs", headers={"Authorization": "Bearer " + token})
    answer = connection.getresponse()
    answer.read()
    return answer.status

def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", required=True)
    parser.add_argument("--connections", type=int, default=2000)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--most-ms", type=float, default=5000)
    parser.add_argument("--once", action="store_true")
    here = parser.parse_args()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if most < here.connections + 100:
        print(f"SKIP: {most} files may be open, and {here.connections} connections are wanted")
        sys.exit(77)
    with tempfile.TemporaryDirectory(prefix="gradsync-crowd.") as directory:
        ports = os.path.join(directory, "ports")
        log = open(os.path.join(directory, "log"), "wb")
        server = subprocess.Popen([os.path.join(here.bin, "gradsync-coordinator"), "--http", "127.0.0.1:0", "--control", "tcp://127.0.0.1:0",
                                   "--require-token", "--data-dir", os.path.join(directory, "data"), "--port-file", ports], stdout=log, stderr=log)
        try:
            while not os.path.exists(ports) and server.poll() is None:
                time.sleep(0.05)
            port = int(json.load(open(ports))["http"].rsplit(":", 1)[1])
            token = open(os.path.join(directory, "data", "admin.token")).read().strip()
            kept = connect(port)
            assert ask(kept, token) == 200
            stop, made, times, refused, again = threading.Event(), [0, 0], [], [], 0
            # A process of its own, so that who asks does not wait for who makes the crowd.
            reader, writer = os.pipe()
            child = os.fork()
            if child == 0:
                threading.Thread(target=lambda: (os.read(reader, 1), stop.set()), daemon=True).start()
                crowd(port, here.connections, stop, made)
                with open(os.path.join(directory, "made"), "w") as file:
                    json.dump(made, file)
                os._exit(0)
            end = time.monotonic() + here.seconds
            try:
                while time.monotonic() < end or len(times) + len(refused) < 40:
                    for connection in (kept, connect(port)):
                        begin = time.monotonic()
                        try:
                            status = ask(connection, token)
                        except (OSError, http.client.HTTPException) as error:
                            status = repr(error)
                            connection.close()
                            again += 1
                            if not here.once:
                                try:
                                    status = ask(connection, token)
                                except (OSError, http.client.HTTPException) as second:
                                    status = repr(second)
                        times.append((time.monotonic() - begin) * 1000)
                        if status != 200:
                            refused.append(f"{'kept' if connection is kept else 'new'}: {status}")
                        if connection is not kept:
                            connection.close()
            finally:
                os.write(writer, b"x")
                os.waitpid(child, 0)
            made = json.load(open(os.path.join(directory, "made")))
            times.sort()
            print(f"{made[0]} connections of nobody, {made[1]} at once; {len(times)} requests with a token, {again} tried again, {len(refused)} refused, "
                  f"p50 {times[len(times) // 2]:.1f} ms, p99 {times[len(times) * 99 // 100]:.1f} ms, the longest {times[-1]:.1f} ms")
            if refused:
                sys.exit("refused: " + "; ".join(refused[:5]))
            if made[0] < here.connections:
                sys.exit("that was no crowd")
            if times[len(times) * 99 // 100] > here.most_ms:
                sys.exit("too late")
        finally:
            server.terminate()
            server.wait(60)
            log.close()

main()
