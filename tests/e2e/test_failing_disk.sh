#!/usr/bin/env bash
# D1, D2, D7: the disk of checkpoints is full or gives errors, at each kind of call of a save, to the ranks of a job that trains; then it
# takes nothing at all. The save fails with its cause, what was begun is removed, steps go on, and the next save is a checkpoint. And data
# directories that take nothing, or are somebody else's.
. "$(dirname "$0")/lib.sh"
command -v "${CC:-cc}" >/dev/null || { echo "SKIP: no compiler"; exit 77; }
"${CC:-cc}" -D_GNU_SOURCE -std=gnu11 -O1 -shared -fPIC -I "$(dirname "$0")/../.." -o "$run/disk.so" "$(dirname "$0")/../support/full_disk.c" -ldl

# disk_fails KINDS ERRNO: from now on, all calls of these kinds (full_disk.h); 0 0: none.
disk_fails() {
  python3 - "$run/disk" "$@" <<'PY'
import struct, sys
with open(sys.argv[1], "r+b", buffering=0) as file:
    kinds, error = int(sys.argv[2]), int(sys.argv[3])
    file.seek(16)
    file.write(struct.pack("=q", 0))  # first: nothing fails while the rest is set
    file.seek(0)
    file.write(struct.pack("=iiq", kinds, error, 0))
    file.seek(24)
    file.write(struct.pack("=q", 2**63 - 1))
    file.seek(16)
    file.write(struct.pack("=q", 1 if kinds else 0))
PY
}
head -c 40 /dev/zero >"$run/disk"
writes=1 syncs=2 closes=4 names=8 enospc=28 eio=5

start_coordinator c "$run/data"
place=$run/data/checkpoints
LD_PRELOAD=$run/disk.so GRADSYNC_FULL_DISK=$run/disk GRADSYNC_FULL_DISK_ROOT=$place \
  GRADSYNC_PASS_ENVIRONMENT=GRADSYNC_FULL_DISK,GRADSYNC_FULL_DISK_ROOT start_worker w 2
saving_job() { mlp_job "$1" 1000000 2 ",\"debug\":{\"step_delay_ms\":5},\"checkpoint\":{\"every_steps\":10,\"parts\":\"$2\",\"keep_last\":2}"; }
step_now() { job_field "$job" .progress.step; }
has_checkpoint() { get "/v1/jobs/$job/checkpoints" | jq -e --argjson least "$1" '[.items[] | select(.verified) | .step] | max >= $least'; }
manifests() { find "$place/$job" -name MANIFEST.json | sort; }
rubbish() { find "$place/$job" -name '*.tmp.*' -o -name '.draft-*'; find "$place/$job" -name 'step-*' -type d | while read -r one; do [ -e "$one/MANIFEST.json" ] || echo "$one"; done; }
# A save may be at work at any time: what it leaves is looked at behind the job.
is_tidy() { [ -z "$(rubbish)" ]; }
failures() { get "/v1/jobs/$job/events?limit=500" | jq -r '.items[] | select(.reason == "CheckpointFailed") | .message'; }
# Of each step from the $1-th on the save failed, with these words, and none became a checkpoint.
failed_from() { failures | grep -F "$2" | sed -n 's/.*step \([0-9]*\).*/\1/p' | awk -v from="$1" '$1 > from { found = 1 } END { exit !found }'; }

# fails_with PARTS KINDS ERRNO WORDS
fails_with() {
  local from newest at
  submit "$(saving_job "failing-$1-$2-$3" "$1")"
  wait_for 60 "a checkpoint" has_checkpoint 10
  from=$(step_now)
  disk_fails "$2" "$3"
  wait_for 60 "a save that fails" failed_from "$from" "$4"
  # The one that was on its way has become a checkpoint or has not; from here on none does.
  at=$(step_now)
  newest=$(manifests | tail -n 1)
  wait_for 60 "steps beside a disk that fails" step_at_least "$job" $((at + 40))
  same "$(manifests | tail -n 1)" "$newest" "the newest manifest on a disk that fails"
  same "$(job_field "$job" '"\(.state) \(.restarts)"')" "running 0" "the job"
  disk_fails 0 0
  at=$(step_now)
  wait_for 60 "a checkpoint when the disk is well again" has_checkpoint "$at"
  request POST "/v1/jobs/$job/stop" '{"mode":"graceful"}'
  await "$job" cancelled 60
  wait_for 30 "nothing left of what failed" is_tidy
}

claim "a disk that is full at a write, or at a rename: the save fails with its cause, and training goes on"
fails_with one $writes $enospc "No space left on device"
fails_with one $names $enospc "No space left on device"
fails_with ranks $names $enospc "No space left on device"
claim "a disk that gives errors of write, sync, close and rename: the same"
fails_with one $writes $eio "Input/output error"
fails_with one $syncs $eio "Input/output error"
fails_with one $closes $eio "Input/output error"
fails_with one $names $eio "Input/output error"
fails_with ranks $syncs $eio "Input/output error"

claim "a place of checkpoints that becomes read-only: the same, and it is named"
read_only() { mount --bind "$place" "$place" 2>/dev/null && mount -o remount,bind,ro "$place"; }
if read_only; then
  trap 'umount -l "$place" 2>/dev/null; finish' EXIT
  mount -o remount,bind,rw "$place"
  submit "$(saving_job read-only one)"
  wait_for 60 "a checkpoint" has_checkpoint 10
  from=$(step_now)
  mount -o remount,bind,ro "$place"
  wait_for 60 "a save that fails" failed_from "$from" "$place/$job"
  failed_from "$from" "Read-only file system" || fail "why: $(failures)"
  at=$(step_now)
  wait_for 60 "steps beside it" step_at_least "$job" $((at + 40))
  same "$(job_field "$job" '"\(.state) \(.restarts)"')" "running 0" "the job"
  mount -o remount,bind,rw "$place"
  at=$(step_now)
  wait_for 60 "a checkpoint when it takes something again" has_checkpoint "$at"
  request POST "/v1/jobs/$job/stop" '{"mode":"graceful"}'
  await "$job" cancelled 60
else
  echo "  nothing can be mounted here: left out"
fi

claim "a data directory that takes nothing, or is somebody else's: no start, and it is named"
mkdir "$run/mine" "$run/theirs"
chmod 755 "$run"
as_nobody=()
if [ "$(id -u)" = 0 ]; then
  as_nobody=(setpriv --reuid 65534 --regid 65534 --clear-groups)
  chown 65534 "$run/mine"
fi
chmod 500 "$run/mine"
refused() { # DIRECTORY
  local code=0
  timeout 30 "${as_nobody[@]}" "$bin/gradsync-coordinator" --http 127.0.0.1:0 --control tcp://127.0.0.1:0 --data-dir "$1" >"$run/said" 2>&1 || code=$?
  same "$code" 73 "exit code ($(cat "$run/said"))"
  grep -q "$1.*Permission denied" "$run/said" || fail "said: $(cat "$run/said")"
  same "$(find "$1" -mindepth 1 2>/dev/null | wc -l)" 0 "files in it"
}
refused "$run/mine"
if [ "$(id -u)" = 0 ]; then
  chmod 755 "$run/theirs"
  refused "$run/theirs"
  refused "$run/theirs/below"
else
  echo "  other users are root's: left out"
fi
