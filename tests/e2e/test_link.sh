#!/usr/bin/env bash
# The line that other tests and benchmarks measure on (tests/support/link) is as it is told to be: its rate, its delay, its losses
# and its disorder, each measured by plain sockets from end to end. A busy machine delays a packet, never hurries one: what counts
# is the best of several tries, and none may be better than the line allows.
command -v python3 >/dev/null && command -v cc >/dev/null && command -v tc >/dev/null || [ -x /usr/sbin/tc ] || { echo "SKIP: no python3, cc or tc"; exit 77; }
. "$(dirname "$0")/network.sh"
. "$(dirname "$0")/../support/link/link.sh"
host left
host right
link_world "$run"
link_line 1 left right
link_rate 1 1000000 2>/dev/null || skip "no tc tbf"
link_rate 1 0

cat >"$run/echo.py" <<'PY'
import socket, threading
def serve(conn):
    with conn:
        if conn.recv(1) == b'p':  # echoes
            while (data := conn.recv(64)): conn.sendall(data)
        else:  # takes all there is, then says so
            while conn.recv(1 << 20): pass
            conn.sendall(b'.')
tcp = socket.create_server(('10.78.1.2', 9000))
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
udp.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
udp.bind(('10.78.1.2', 9001))
def datagrams():
    seen = {}  # of each sender: how many, how many behind a later one, the last
    while True:
        data, who = udp.recvfrom(64)
        count, late, last = seen.get(who, (0, 0, -1))
        if data[:1] == b'?': udp.sendto(data + f' {count} {late}'.encode(), who)
        else: seen[who] = count + 1, late + (int(data) < last), int(data)
threading.Thread(target=datagrams, daemon=True).start()
print('up', flush=True)
while True:
    conn, _ = tcp.accept()
    conn.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    threading.Thread(target=serve, args=(conn,), daemon=True).start()
PY
cat >"$run/probe.py" <<'PY'
import socket, sys, time
what, *numbers = sys.argv[1:]
def connect(word):
    conn = socket.create_connection(('10.78.1.2', 9000), timeout=60)
    conn.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    conn.sendall(word)
    return conn
def trip():  # the least of many, in ms
    conn, least = connect(b'p'), 1e9
    for _ in range(60):
        begin = time.monotonic(); conn.sendall(b'x')
        conn.recv(1); least = min(least, time.monotonic() - begin)
    return least * 1e3
def rate(bytes):  # payload, B/s
    conn, data = connect(b'r'), b'\0' * (1 << 16)
    begin = time.monotonic()
    for _ in range(bytes >> 16): conn.sendall(data)
    conn.shutdown(socket.SHUT_WR); conn.recv(1)
    return (bytes >> 16 << 16) / (time.monotonic() - begin)
if what == 'trip':  # MS_BOTH_WAYS
    wanted = float(numbers[0])
    for tries in range(20):
        least = trip()
        if least < wanted: sys.exit(f'{least:.2f} ms for a trip of {wanted} ms: the line is too short')
        if least <= wanted + max(1, 0.1 * wanted): print(f'{least:.2f} ms'); sys.exit(0)
    sys.exit(f'{least:.2f} ms at best for a trip of {wanted} ms')
if what == 'rate':  # BYTES_PER_SECOND BYTES
    wanted = float(numbers[0])
    for tries in range(20):
        # Of 1514 bytes on the wire 1448 are payload.
        wire = rate(int(numbers[1])) * 1514 / 1448
        if wire > 1.05 * wanted: sys.exit(f'{wire:.0f} B/s on a line of {wanted:.0f}: the line is too fast')
        if wire >= 0.95 * wanted: print(f'{wire:.0f} B/s'); sys.exit(0)
    sys.exit(f'{wire:.0f} B/s at best on a line of {wanted:.0f}')
if what == 'datagrams':  # COUNT
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); udp.connect(('10.78.1.2', 9001)); udp.settimeout(0.1); questions = []
    def ask():  # question or answer may be lost as well
        for _ in range(300):
            questions.append(f'?{len(questions)}'); udp.send(questions[-1].encode())
            try:
                while (words := udp.recv(64).decode().split())[0] != questions[-1]: pass
                return list(map(int, words[1:]))
            except TimeoutError: continue
        sys.exit('nobody answers')
    for i in range(int(numbers[0])):
        udp.send(str(i).encode())
        if i % 50 == 49: ask()  # who answers has taken those before: no buffer runs over
    said, seen = ask(), None
    while said != seen:
        time.sleep(0.2); seen, said = said, ask()
    print(int(numbers[0]) - seen[0], seen[1])
PY
ip netns exec right python3 "$run/echo.py" >"$run/echo.out" 2>&1 &
pids+=($!)
wait_for 30 "the echo" grep -q up "$run/echo.out"
probe() { ip netns exec left python3 "$run/probe.py" "$@"; }

claim "a delay is what it is told to be"
link_delay 1 5000
probe trip 10
link_delay 1 0
probe trip 0
claim "a rate is what it is told to be, with a delay and without"
# Slow enough that a relay which is late for its turn catches up.
link_rate 1 2500000
probe rate 2500000 5000000
link_delay 1 5000
probe rate 2500000 5000000
link_rate 1 0
claim "packets are lost, as many as it is told, and others are not"
link_delay 1 1000 --loss 0.1
read -r lost late <<<"$(probe datagrams 4000)"
[ "$lost" -ge 300 ] && [ "$lost" -le 500 ] || fail "$lost of 4000 datagrams are lost, not 400"
same "$late" 0 "datagrams out of order"
claim "packets overtake others"
link_delay 1 1000 --reorder 0.05
read -r lost late <<<"$(probe datagrams 4000)"
same "$lost" 0 "datagrams lost"
[ "$late" -ge 50 ] && [ "$late" -le 400 ] || fail "$late of 4000 datagrams came out of order"
claim "jitter keeps the order"
link_delay 1 1000 --jitter-us 2000
read -r lost late <<<"$(probe datagrams 1000)"
same "$lost $late" "0 0" "datagrams lost and out of order"
kill -TERM "${link_pids[1]}"
