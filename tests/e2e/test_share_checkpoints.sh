#!/usr/bin/env bash
# share-checkpoints, which an upgrade of the packages runs where trainers write: it gives what its user has there to the group, and
# nothing else, whatever names trainers exchange meanwhile.
. "$(dirname "$0")/lib.sh"
[ "$(id -u)" -eq 0 ] || { echo "SKIP share_checkpoints: makes files of several users, which root may"; exit 77; }
program=${SHARE_CHECKPOINTS:-$bin/share-checkpoints}
# Of Debian's users one that is in the group, and has things of another.
owner=sync before=daemon trainer=nobody group=nogroup
place=$run/checkpoints texts=$run/data
chmod 755 "$run"
share() { "$program" --owner $owner --group $group "$place" "$texts"; }
shows() { stat -c '%U:%G %a' "$1"; }
as_owner() { setpriv --reuid $owner --regid $before --clear-groups "$@"; }

claim "what is its user's is for the group: checkpoints to write in, data to read"
install -d -o $owner -g $before -m 755 "$place" "$place/j-one" "$place/j-one/step-1" "$texts" "$texts/more"
as_owner sh -c 'umask 077; echo x >"$1/j-one/step-1/part-0"; echo x >"$2/more/text"; chmod 664 "$2/more/text"; ln -s /etc/passwd "$1/j-one/link"; mkfifo "$1/j-one/pipe"' - "$place" "$texts"
install -o $trainer -g $group -m 600 /dev/null "$place/j-one/of-a-trainer"
share || fail "it fails: $?"
same "$(shows "$place/j-one/step-1")" "$owner:$group 2775" "a directory"
same "$(shows "$place/j-one/step-1/part-0")" "$owner:$group 640" "a part"
same "$(shows "$texts/more")" "$owner:$group 2755" "a directory of data"
same "$(shows "$texts/more/text")" "$owner:$group 644" "data"
same "$(shows "$place/j-one/of-a-trainer")" "$trainer:$group 600" "what is another's"

claim "what it cannot read keeps nothing else from the group, and is said"
install -d -o root -g root -m 700 "$place/lost+found"
as_owner sh -c 'umask 077; echo x >"$1/j-one/step-1/part-1"' - "$place"
code=0
share 2>"$run/said" || code=$?
same "$code" 1 "exit code"
grep -q 'lost+found.*: Permission denied' "$run/said" || fail "said: $(cat "$run/said")"
same "$(shows "$place/j-one/step-1/part-1")" "$owner:$group 640" "a part beside"
rmdir "$place/lost+found"

claim "names that are exchanged meanwhile lead it nowhere"
# Its user's own, elsewhere, of the group already: a mode is all that it would take to open it.
install -d -o $owner -g $group -m 711 "$run/secret"
for i in $(seq 40); do install -o $owner -g $group -m 600 /dev/null "$run/secret/key-$i"; done
install -d -o $owner -g $group -m 2770 "$place/j-two"
install -d -o $owner -g $group -m 700 "$run/secret/inside"
install -o $owner -g $group -m 600 /dev/null "$run/secret/inside/key"
cat >"$run/exchange.py" <<'PY'
#!/usr/bin/env python3
"""DIRECTORY SECRETS SECONDS: things of the directory take turns under their names with links to what lies elsewhere."""
import ctypes, os, sys, time
libc = ctypes.CDLL(None, use_errno=True)
here, elsewhere, until = sys.argv[1], sys.argv[2], time.monotonic() + float(sys.argv[3])
os.chdir(here)
for i in range(1, 41):
    os.symlink(f"{elsewhere}/key-{i}", f"link-{i}")
os.symlink(f"{elsewhere}/inside", "link-inside")
turns = 0
while time.monotonic() < until:
    for name in [str(i) for i in range(1, 41)] + ["inside"]:
        if libc.renameat2(-100, f"link-{name}".encode(), -100, f"thing-{name}".encode(), 2) != 0:
            sys.exit(os.strerror(ctypes.get_errno()))
    turns += 1
print(turns)
PY
chmod 755 "$run/exchange.py"
for i in $(seq 40); do install -o $owner -g $group -m 600 /dev/null "$place/j-two/thing-$i"; done
install -d -o $owner -g $group -m 700 "$place/j-two/thing-inside"
setpriv --reuid $trainer --regid $group --clear-groups "$run/exchange.py" "$place/j-two" "$run/secret" "${EXCHANGE_SECONDS:-8}" >"$run/turns" 2>&1 &
exchange=$!
pids+=("$exchange")
runs=0
while kill -0 "$exchange" 2>/dev/null; do
  share 2>/dev/null || true
  find "$run/secret" \( -type f ! -perm 600 -o -path '*/inside' ! -perm 700 \) -print >>"$run/opened"
  [ ! -s "$run/opened" ] || break
  # There is something to give each time; whom this reaches by a link stays as it was.
  find "$place/j-two" -type f -exec chmod 600 {} + 2>/dev/null || true
  # With all digits: else chmod keeps the bit of what it has looked at, and gives it to what has taken the name since.
  find "$place/j-two" -mindepth 1 -type d -exec chmod 00700 {} + 2>/dev/null || true
  runs=$((runs + 1))
done
[ ! -s "$run/opened" ] || fail "in run $runs it changed $(head -n 3 "$run/opened" | tr '\n' ' ')"
wait "$exchange" || fail "nothing was exchanged: $(cat "$run/turns")"
[ "$(cat "$run/turns")" -gt 10 ] && [ "$runs" -gt 10 ] || fail "too little to say anything: $(cat "$run/turns") exchanges, $runs runs"
echo "  $runs runs beside $(cat "$run/turns") rounds of 41 exchanges"
