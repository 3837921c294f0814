#!/usr/bin/env bash
# HTTP encrypted: which versions and ciphers, what a wrong certificate is refused with, and a certificate that is replaced while
# requests come in: none of them fails, and who is connected stays so.
. "$(dirname "$0")/lib.sh"
for tool in openssl python3; do
  command -v "$tool" >/dev/null || { echo "SKIP: no $tool"; exit 77; }
done
cli=$bin/gradsync

make_cert() { # NAME: NAME.cert and NAME.key
  openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 30 -subj "/CN=$1" \
    -addext subjectAltName=DNS:localhost,IP:127.0.0.1 -keyout "$run/$1.key" -out "$run/$1.cert" 2>/dev/null
  chmod 600 "$run/$1.key"
}
make_cert first
make_cert second
cp "$run/first.cert" "$run/cert"
cp -p "$run/first.key" "$run/key"
cat "$run/first.cert" "$run/second.cert" >"$run/authorities"

refuses() { # WHAT FLAG…: not served, for that reason
  local what=$1 code=0
  shift
  timeout 60 "$bin/gradsync-coordinator" --http 127.0.0.1:0 --control tcp://127.0.0.1:0 --data-dir "$run/refused" "$@" >"$run/refused.log" 2>&1 || code=$?
  same "$code" 78 "exit code with $*"
  grep -qF -- "$what" "$run/refused.log" || fail "with $* is said: $(tail -n 2 "$run/refused.log")"
}

claim "a key that is missing, of another certificate, or for everybody's eyes is refused"
refuses "--tls-key is missing" --tls-cert "$run/cert"
refuses "is not the key of the first certificate" --tls-cert "$run/cert" --tls-key "$run/second.key"
refuses "holds no certificates in PEM" --tls-cert "$run/key" --tls-key "$run/key"
refuses "cannot be read" --tls-cert "$run/cert" --tls-key "$run/none"
chmod 644 "$run/second.key"
refuses "may be read by others" --tls-cert "$run/second.cert" --tls-key "$run/second.key"
chmod 600 "$run/second.key"

claim "another address than a loopback one is served encrypted, to who has a token"
begin_encrypted() {
  "$bin/gradsync-coordinator" --http 0.0.0.0:0 --control tcp://127.0.0.1:0 --data-dir "$run/data" --tls-cert "$run/cert" --tls-key "$run/key" \
    --port-file "$run/ports" >"$run/logs/coordinator.log" 2>&1 &
  pids+=("$!")
}
begin_encrypted
wait_for 30 "a port" test -s "$run/ports"
port=$(jq -r .http "$run/ports" | sed 's/.*://')
export GRADSYNC_SERVER=https://127.0.0.1:$port
export CURL_CA_BUNDLE=$run/authorities
wait_for 30 "readiness" curl -fsS "$GRADSYNC_SERVER/readyz"
same "$(curl -sS -o /dev/null -w '%{http_code}' "$GRADSYNC_SERVER/v1/jobs")" 401 "status without a token"
same "$(curl -sS -o /dev/null -w '%{http_code}' -H "Authorization: Bearer $(cat "$run/data/admin.token")" "$GRADSYNC_SERVER/v1/jobs")" 200 "status with it"
mistrusts() { # a busy machine may time out first
  local code=0
  "$cli" list >/dev/null 2>"$run/err" || code=$?
  [ "$code" -eq 6 ] && grep -q -- --cacert "$run/err"
}
wait_for 60 "exit code 6 and a way out without the authority" mistrusts
(cd "$run" && "$cli" login --cacert authorities --token-file data/admin.token >/dev/null 2>"$run/err") || fail "login: $(cat "$run/err")"
"$cli" list >/dev/null || fail "list as login kept it"

# A handshake that never comes: looked at in the end.
python3 - "$port" >"$run/silent" <<'PYTHON' &
import socket, sys
silent = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
silent.settimeout(120)
print("cut" if silent.recv(1) == b"" else "spoken to")
PYTHON
silent_pid=$!
pids+=("$silent_pid")

claim "TLS 1.2 and 1.3, with forward secrecy and authenticated ciphers"
hands() { # FLAG…: what a handshake comes to: "VERSION CIPHER", or nothing
  { timeout 60 openssl s_client -connect "127.0.0.1:$port" -CAfile "$run/authorities" "$@" </dev/null 2>/dev/null || true; } |
    sed -n 's/^New, \(TLSv[0-9.]*\), Cipher is \(.*\)$/\1 \2/p' | grep -v NONE | head -n 1 || true
}
same "$(hands -tls1_3 | cut -d' ' -f1)" TLSv1.3 "handshake of 1.3"
for cipher in ECDHE-ECDSA-AES128-GCM-SHA256 ECDHE-ECDSA-AES256-GCM-SHA384 ECDHE-ECDSA-CHACHA20-POLY1305; do
  same "$(hands -tls1_2 -cipher "$cipher")" "TLSv1.2 $cipher" "handshake of 1.2"
done
for old in "-tls1" "-tls1_1"; do same "$(hands "$old" -cipher ALL:@SECLEVEL=0)" "" "handshake of $old"; done
for weak in ECDHE-ECDSA-AES128-SHA ECDHE-ECDSA-AES256-SHA384 ECDHE-ECDSA-AES128-CCM8; do
  same "$(hands -tls1_2 -cipher "$weak:@SECLEVEL=0")" "" "handshake with $weak"
done
curl -sS "http://127.0.0.1:$port/livez" >/dev/null 2>&1 && fail "an unencrypted request is answered"

claim "a certificate is replaced under load, and no request fails"
cat >"$run/load.py" <<'PYTHON'
import http.client, os, ssl, sys, threading, time
port, authorities, stop, report = int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4]
context = ssl.create_default_context(cafile=authorities)
failures, counts = [], [0] * 3

def ask(connection):
    connection.request("GET", "/livez")
    answer = connection.getresponse()
    answer.read()
    if answer.status != 200:
        raise RuntimeError(answer.status)

def load(index, kept):
    connection = None
    while not os.path.exists(stop):
        try:
            if not connection or not kept:
                connection = http.client.HTTPSConnection("127.0.0.1", port, context=context, timeout=60)
            ask(connection)
            if not kept:
                connection.close()
            counts[index] += 1
            time.sleep(0.005)
        except Exception as error:
            failures.append(f"{index}: {error!r}")
            return
        if counts[index] % 20 == 0:
            open(f"{report}.{index}", "w").close()

threads = [threading.Thread(target=load, args=(i, i == 0)) for i in range(3)]
for thread in threads: thread.start()
for thread in threads: thread.join()
with open(report, "w") as file:
    file.write("\n".join(failures) if failures else "none\n")
PYTHON
python3 "$run/load.py" "$port" "$run/authorities" "$run/stop" "$run/report" &
load_pid=$!
pids+=("$load_pid")
loaded() { [ "$(find "$run" -name 'report.?' | wc -l)" -eq 3 ]; }
wait_for 60 "requests" loaded
shown() { { timeout 60 openssl s_client -connect "127.0.0.1:$port" </dev/null 2>/dev/null || true; } | openssl x509 -noout -subject 2>/dev/null | grep -o '[a-z]*$'; }
shows() { [ "$(shown)" = "$1" ]; }
same "$(shown)" first "who is shown"
cp "$run/second.cert" "$run/cert.new" && mv "$run/cert.new" "$run/cert"
said() { grep -qF "$1" "$run/logs/coordinator.log"; }
wait_for 30 "a word of the key that is missing" said "is not the key of the first certificate"
same "$(shown)" first "who is shown between the two files"
cp -p "$run/second.key" "$run/key.new" && mv "$run/key.new" "$run/key"
wait_for 30 "the second certificate" shows second
rm -f "$run"/report.?
wait_for 60 "requests after it" loaded
touch "$run/stop"
wait "$load_pid"
same "$(cat "$run/report")" none "requests that failed"

claim "who never says hello is cut"
wait "$silent_pid"
same "$(cat "$run/silent")" cut "the silent connection"
echo "passed: HTTP encrypted"
