#!/usr/bin/env bash
# The Debian packages of this build: what they hold, what they depend on, what they do to a machine. With
# GRADSYNC_PACKAGES=install they are also installed in a bare Debian, run a job there as their service files say, and are removed.
set -euo pipefail
source_dir=$(cd "$(dirname "$0")/../.." && pwd)
build=${GRADSYNC_BUILD_DIR:-$source_dir/build/release}
skip() { echo "SKIP packages: $*"; exit 77; }
for tool in cpack dpkg-deb dpkg-shlibdeps; do command -v "$tool" >/dev/null || skip "no $tool"; done
[ -f "$build/CPackConfig.cmake" ] || skip "$build makes no packages"
work=$(mktemp -d)
root=$work/root
finish() {
  local code=$? pid
  for pid in ${coordinator:-} ${worker:-}; do kill -KILL "$pid" 2>/dev/null || true; done
  for place in "$root/proc" "$root/dev/null" "$root/dev/urandom"; do umount -l "$place" 2>/dev/null || true; done
  rm -rf --one-file-system "$work"
  exit $code
}
trap finish EXIT
fail() { echo "FAILED: $*" >&2; exit 1; }
same() { [ "$1" = "$2" ] || fail "$3: is '$1', not '$2'"; }

echo "· CPack makes five packages"
# Not compressed: that takes the most time of all.
(cd "$build" && cpack -G DEB -D CPACK_DEBIAN_COMPRESSION_TYPE=none -B "$work/debs") >"$work/cpack.log" 2>&1 || { tail -n 20 "$work/cpack.log"; fail cpack; }
abi=$(sed -n 's/#define GS_ABI_VERSION //p' "$source_dir/core/version.h")
version=$(sed -n 's/^CMAKE_PROJECT_VERSION:STATIC=//p' "$build/CMakeCache.txt")
architecture=$(dpkg --print-architecture)
names=(gradsync gradsync-coordinator gradsync-worker "libgradsync$abi" libgradsync-dev)
deb() { echo "$work/debs/$1_${version}_$architecture.deb"; }
same "$(cd "$work/debs" && printf '%s\n' *.deb | sort)" "$(for name in "${names[@]}"; do basename "$(deb "$name")"; done | sort)" packages

holds() { # PACKAGE FILE…
  local package=$1 file
  shift
  for file in "$@"; do
    grep -qx "$file" "$work/$package.files" || fail "$package has no $file"
  done
}
for name in "${names[@]}"; do
  dpkg-deb -c "$(deb "$name")" >"$work/$name.list"
  awk '{ print substr($6, 2) }' "$work/$name.list" | sed 's|/$||' | sort >"$work/$name.files"
  dpkg-deb -R "$(deb "$name")" "$work/$name"
  control=$work/$name/DEBIAN/control
  field() { sed -n "s/^$1: //p" "$control"; }
  echo "· $name: $(field Depends)"
  # What lintian would say first.
  same "$(awk '{ print $2 }' "$work/$name.list" | sort -u)" root/root "owners in $name"
  same "$(awk '$1 !~ /^l/ && $1 ~ /^.(.{4}w|.{7}w)/' "$work/$name.list")" "" "$name: what others may write"
  grep -q '^ [A-Z]' "$control" || fail "$name has no description: $(cat "$control")"
  [ "$(awk '/^Description: /{ print length($0) - 13 }' "$control")" -le 80 ] || fail "the first line of its description is too long"
  for wanted in Maintainer Section Architecture Installed-Size; do [ -n "$(field "$wanted")" ] || fail "$name has no $wanted"; done
  holds "$name" "/usr/share/doc/$name/copyright" "/usr/share/doc/$name/changelog.gz"
  # One file is one package's.
  grep -vxF -f <(find "$work/$name" -type d -printf '/%P\n') "$work/$name.files" >>"$work/all.files"
  ! grep -rlF --exclude='*.a' "$source_dir" "$work/$name" || fail "$name names the tree that it was built in"
  find "$work/$name/usr" -type f \( -perm -100 -o -name '*.so.*' \) | while read -r program; do
    ! readelf -S "$program" 2>/dev/null | grep -q '\.debug_info' || fail "$program is not stripped"
    ! readelf -d "$program" 2>/dev/null | grep -E 'RPATH|RUNPATH' || fail "$program looks for libraries in folders of the build"
  done
  for script in postinst prerm postrm; do
    [ ! -e "$work/$name/DEBIAN/$script" ] || { sh -n "$work/$name/DEBIAN/$script" && same "$(stat -c %a "$work/$name/DEBIAN/$script")" 755 "mode of $script"; }
  done
done
same "$(sort "$work/all.files" | uniq -d)" "" "files of two packages"
holds gradsync /usr/bin/gradsync
holds gradsync-coordinator /usr/bin/gradsync-{coordinator,api} /usr/lib/systemd/system/gradsync-{coordinator,api}.service /etc/gradsync/{coordinator,api}.json
holds gradsync-worker /usr/bin/gradsync-worker /usr/lib/gradsync/share-checkpoints /usr/lib/systemd/system/gradsync-worker.service /etc/gradsync/worker.json
holds "libgradsync$abi" "/usr/lib/libgradsync.so.$abi" "/usr/lib/libgradsync.so.$version"
holds libgradsync-dev /usr/lib/libgradsync.so /usr/lib/libgradsync.a /usr/lib/pkgconfig/gradsync.pc /usr/lib/cmake/gradsync/gradsyncConfig.cmake
! grep -q 'libgradsync.so\.' "$work/libgradsync-dev.files" || fail "libgradsync-dev has the shared library too"
depends() { sed -n 's/^Depends: //p' "$work/$1/DEBIAN/control"; }
for library in libzmq5 libmicrohttpd12 libsqlite3-0 libjson-c5; do grep -q "\b$library\b" <<<"$(depends gradsync-coordinator)" || fail "the coordinator does not depend on $library"; done
for library in libzmq5 libopenblas0 libhwloc15; do grep -q "\b$library\b" <<<"$(depends gradsync-worker)" || fail "the worker does not depend on $library"; done
same "$(sort "$work/gradsync-coordinator/DEBIAN/conffiles" | tr '\n' ' ')" "/etc/gradsync/api.json /etc/gradsync/coordinator.json " "conffiles of the coordinator"
same "$(cat "$work/gradsync-worker/DEBIAN/conffiles")" /etc/gradsync/worker.json "conffiles of the worker"
grep -q "^libgradsync $abi libgradsync$abi" "$work/libgradsync$abi/DEBIAN/shlibs" || fail "shlibs: $(cat "$work/libgradsync$abi/DEBIAN/shlibs")"
[ "${GRADSYNC_PACKAGES:-}" = install ] || { echo "packages: made and looked through"; exit 0; }

[ "$(id -u)" -eq 0 ] || skip "needs root for debootstrap"
command -v debootstrap >/dev/null || skip "no debootstrap"
echo "· installed in a bare Debian, with what they depend on"
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | head -n 1)
debootstrap --variant=minbase bookworm "$root" "$mirror" >"$work/debootstrap.log" 2>&1 || { tail -n 5 "$work/debootstrap.log"; skip "debootstrap failed"; }
cp /etc/resolv.conf /etc/hosts "$root/etc/"
# What this machine's mirror needs, its proxy and the age of its lists among it.
apt-config dump | grep -E '^Acquire::(https?::|Check-|Retries)' >"$root/etc/apt/apt.conf.d/90mirror" || true
# Nothing is started by a package.
printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d"
chmod +x "$root/usr/sbin/policy-rc.d"
mount -t proc proc "$root/proc"
mkdir "$root/debs"
cp "$work"/debs/*.deb "$root/debs"
inside() { chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive "$@"; }
logged() { "$@" >"$work/inside.log" 2>&1 || { tail -n 20 "$work/inside.log"; fail "$*"; }; }
inside sh -c 'find / -xdev -path /proc -prune -o -path /var/lib/apt -prune -o -path /var/cache -prune -o -path /var/log -prune -o -type f -print' | sort >"$work/before"
logged inside apt-get update -qq
packed() { local name; for name in "$@"; do echo "/debs/${name}_${version}_$architecture.deb"; done; }
# shellcheck disable=SC2046  # words
logged inside apt-get install -y -qq --no-install-recommends $(packed gradsync gradsync-coordinator gradsync-worker "libgradsync$abi")
for user in gradsync gradsync-worker gradsync-trainer; do inside getent passwd "$user" | grep -q ":/var/lib/$user:.*nologin" || fail "no user $user"; done
same "$(inside id -nG gradsync-worker)" gradsync-worker "groups of workers"
same "$(inside id -nG gradsync-trainer)" gradsync-trainer "groups of trainers"
state_dirs() { inside stat -c '%n %U:%G %a' /var/lib/gradsync /var/lib/gradsync/data /var/lib/gradsync/checkpoints | sed 's|^/var/lib/||' | tr '\n' ' '; }
wanted_dirs="gradsync gradsync:gradsync 711 gradsync/data gradsync:gradsync-worker 2750 gradsync/checkpoints gradsync:gradsync-worker 2770 "
same "$(state_dirs)" "$wanted_dirs" "whose the data are"
for program in gradsync gradsync-coordinator gradsync-worker gradsync-api; do inside "$program" --version >/dev/null || fail "$program does not start"; done
inside ldconfig -p | grep -q "libgradsync.so.$abi" || fail "the loader does not find the library"

trainer=$(inside id -u gradsync-trainer)
say_of() { sed -n "s/^$2=//p" "$root/usr/lib/systemd/system/$1.service" | tail -n 1; }
as_user() { # USER[:GROUP] [--init-groups or --clear-groups] COMMAND…
  local user=${1%:*} group=${1#*:} groups=$2
  shift 2
  chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/nonexistent "${environment[@]}" setpriv --reuid "$user" --regid "$group" "$groups" --no-new-privs \
    --inh-caps="-all$kept" --ambient-caps="-all$kept" --bounding-set="-all$kept" "$@"
}
environment=()
kept=''  # of privileges, as setpriv calls them
# As systemd does: user, groups, umask and state of the unit.
service() { # NAME
  umask "$(say_of "$1" UMask)"
  environment=("STATE_DIRECTORY=/var/lib/$(say_of "$1" StateDirectory)")
  environment+=("$(say_of "$1" Environment)")
  [ -n "${environment[-1]}" ] || unset 'environment[-1]'
  kept=$(say_of "$1" AmbientCapabilities | sed 's/^CAP_/,+/' | tr '[:upper:]' '[:lower:]')
  # shellcheck disable=SC2046  # words
  as_user "$(say_of "$1" User)" --init-groups $(say_of "$1" ExecStart)
}
# As the units of a version had it whose workers were the coordinator's user.
service_before() { # NAME UMASK
  umask "$2"
  environment=(STATE_DIRECTORY=/var/lib/gradsync)
  # shellcheck disable=SC2046  # words
  as_user gradsync --clear-groups $(say_of "$1" ExecStart | sed 's/ --run-as [^ ]*//')
}
process_of() { pgrep -P "$1" -x "$2" || { [ "$(cat "/proc/$1/comm")" = "$2" ] && echo "$1"; }; }
ends() { # PID NAME
  local pid
  pid=$(process_of "$1" "${2:0:15}") || fail "$2 does not run"
  kill -TERM "$pid"
  wait "$1" || fail "$2 ended with $?"
}
# At ports of its own: the machine's network is shared.
http=$((20000 + RANDOM % 5000)) control=$((25000 + RANDOM % 5000))
sed -i "s/:8470/:$http/; s/:8471/:$control/" "$root"/etc/gradsync/*.json
token=()
cli() { inside GRADSYNC_SERVER="http://127.0.0.1:$http" HOME=/root "${token[@]}" gradsync "$@"; }
wait_for() { # SECONDS WHAT COMMAND…
  local seconds=$1 what=$2
  shift 2
  for _ in $(seq $((seconds * 5))); do ! "$@" >/dev/null 2>&1 || return 0; sleep 0.2; done
  fail "$what ($(cat "$work"/*coordinator.log "$work"/*worker.log 2>/dev/null | tail -n 5))"
}
job_of() { # NAME FIELD
  cli show "$1" -o json | jq -r "$2"
}
job() { # NAME STEPS DELAY_MS
  printf '{"name":"%s","model":{"kind":"gpt2","gpt2":{"layers":1,"heads":2,"channels":16,"context":16}},"data":{"kind":"bytes","train":"*.txt"},"steps":{"target":%s},
    "checkpoint":{"every_steps":20,"keep_last":1000},"debug":{"step_delay_ms":%s}}' "$1" "$2" "$3" >"$root/tmp/job.json"
  cli submit /tmp/job.json >"$work/submit.log" 2>&1 || { cat "$work/submit.log" "$work"/*coordinator.log; fail "submit $1"; }
}
is_in() { [ "$(job_of "$1" .state)" = "$2" ]; }
verified() { cli checkpoints "$1" -o json | jq -r '.items[] | select(.verified) | .step' | sort -n | tail -n 1; }
is_verified_after() { [ "$(verified "$1")" -gt "$2" ]; }
ready() { cli health; }

echo "· what a version has left, whose workers were the coordinator's user"
inside chmod 750 /var/lib/gradsync
inside rmdir /var/lib/gradsync/checkpoints
inside chown gradsync:gradsync /var/lib/gradsync/data
inside chmod 0750 /var/lib/gradsync/data
printf 'to be or not to be, that is the question. %.0s' {1..200} >"$root/var/lib/gradsync/data/text.txt"
inside chown gradsync:gradsync /var/lib/gradsync/data/text.txt
inside chmod 0600 /var/lib/gradsync/data/text.txt
(service_before gradsync-coordinator 0077) >"$work/old-coordinator.log" 2>&1 &
coordinator=$!
wait_for 30 "the coordinator" ready
(service_before gradsync-worker 0027) >"$work/old-worker.log" 2>&1 &
worker=$!
job begun 100000 20
wait_for 60 "a checkpoint" is_verified_after begun 0
begun=$(job_of begun .id)
ends "$worker" gradsync-worker
worker=''
saved=$(verified begun)
[ -n "$(inside find "/var/lib/gradsync/checkpoints/$begun" -name 'part-*' -user gradsync -group gradsync -perm 600)" ] || fail "nothing is as before: $(inside ls -lR /var/lib/gradsync/checkpoints)"

# As on a file system of its own; what cannot be read keeps nothing else from the group.
inside install -d -o root -g root -m 700 /var/lib/gradsync/checkpoints/lost+found
inside install -o gradsync -g gradsync -m 660 /dev/null /var/lib/gradsync/data/of-a-user
echo "· an upgrade gives workers a user of their own, and what was trained to their group"
logged inside dpkg -i --force-confold "$(packed gradsync-coordinator)" "$(packed gradsync-worker)"
same "$(state_dirs)" "$wanted_dirs" "whose the data are, of an upgrade"
same "$(inside stat -c '%G %a' /var/lib/gradsync/data/of-a-user)" "gradsync-worker 640" "data that workers only read"
grep -q "is not all for its group" "$work/inside.log" || fail "not said: $(tail -n 3 "$work/inside.log")"
ends "$coordinator" gradsync-coordinator
# From now on nobody comes to its control port without a key.
sed -i '0,/^{/s//{\n  "require_key": true,/' "$root/etc/gradsync/coordinator.json"
(service gradsync-coordinator) >"$work/coordinator.log" 2>&1 &
coordinator=$!
wait_for 30 "the coordinator" ready
# What it keeps for itself, as far as anybody has made it.
cli token new administrator --role admin >"$work/token" 2>"$work/inside.log" || fail "token: $(cat "$work/inside.log")"
token=(GRADSYNC_TOKEN="$(cat "$work/token")")
as_user gradsync --init-groups gradsync key new of-a-worker --role worker --data-dir /var/lib/gradsync --out /var/lib/gradsync/of-a-worker.key >"$work/key" 2>&1 || fail "key: $(cat "$work/key")"
inside sh -c 'install -d -m 755 /etc/gradsync && install -o root -g gradsync -m 640 /dev/null /etc/gradsync/tls-key.pem'
inside install -d -o gradsync-worker -g gradsync-worker -m 700 /var/lib/gradsync-worker
own_key=/var/lib/gradsync-worker/worker.key
inside install -o gradsync-worker -g gradsync-worker -m 640 /var/lib/gradsync/of-a-worker.key $own_key
sed -i "0,/^{/s//{\n  \"key\": \"${own_key//\//\\/}\",/" "$root/etc/gradsync/worker.json"
echo "· an upgrade says that a key is for trainers to read, and the worker does not start with it"
inside chmod 711 /var/lib/gradsync-worker
logged inside dpkg -i --force-confold "$(packed gradsync-worker)"
grep -q "$own_key is for the group gradsync-worker to read" "$work/inside.log" || fail "not said: $(cat "$work/inside.log")"
code=0
(service gradsync-worker) >"$work/refused" 2>&1 || code=$?
same "$code" 78 "a worker whose key trainers may read: $(tail -n 1 "$work/refused")"
inside chmod 600 $own_key
(service gradsync-worker) >"$work/worker.log" 2>&1 &
worker=$!
wait_for 60 "the job goes on" is_verified_after begun "$saved"

echo "· what runs a job reads nothing of the coordinator's"
agent=$(process_of "$worker" gradsync-worker)
trainers=$(pgrep -P "$agent") || fail "there are no trainers"
uid=$(inside id -u gradsync-worker) gid=$(inside id -g gradsync-worker)
for pid in "$agent" $trainers; do
  whose="$trainer $trainer $trainer $trainer"
  [ "$pid" != "$agent" ] || whose="$trainer $uid $uid $uid"
  same "$(awk '/^Uid:/ { print $2, $3, $4, $5 }' "/proc/$pid/status")" "$whose" "whose process $pid is"
  same "$(awk '/^Cap(Inh|Prm|Eff|Amb):/ { print $2 }' "/proc/$pid/status" | sort -u)" 0000000000000000 "what process $pid may"
  same "$(awk '/^Groups:/ { $1 = ""; print }' "/proc/$pid/status" | xargs)" "$(inside id -g gradsync-worker)" "groups of process $pid"
done
# In places of theirs it reads; elsewhere nothing, no names either.
kept='' environment=()
as_trainer() { as_user gradsync-trainer:gradsync-worker --clear-groups "$@"; }
as_trainer cat /var/lib/gradsync/data/text.txt >/dev/null || fail "data"
inside find /var/lib/gradsync -path /var/lib/gradsync/data -prune -o -path /var/lib/gradsync/checkpoints -prune -o -print >"$work/kept"
for name in control.key keys.json of-a-worker.key tokens.json; do grep -q "/$name\$" "$work/kept" || fail "there is no $name: $(cat "$work/kept")"; done
grep -q '\.db$\|\.sqlite$' "$work/kept" || fail "there is no database: $(cat "$work/kept")"
echo /etc/gradsync/tls-key.pem >>"$work/kept"
while read -r path; do
  for may in r w; do
    ! as_trainer test "-$may" "$path" || fail "a trainer may $may $path: $(inside ls -ld "$path")"
  done
done <"$work/kept"
! as_trainer ls /var/lib/gradsync >"$work/inside.log" 2>&1 || fail "a trainer sees names: $(cat "$work/inside.log")"

echo "· nor of its worker's: no key, no memory, no descriptor"
# From outside, where there are the means, as the same user.
chmod 711 "$work"
install -m 755 "$source_dir/tests/e2e/reach.py" "$work/reach.py"
setpriv --reuid "$trainer" --regid "$gid" --clear-groups --no-new-privs "$work/reach.py" "$agent" "$root$own_key" >"$work/got" || fail "a trainer $(tr '\n' ';' <"$work/got")"
setpriv --reuid "$uid" --regid "$gid" --clear-groups --no-new-privs "$work/reach.py" "$agent" "$root$own_key" >"$work/got" || true
grep -q "reads $root$own_key" "$work/got" || fail "the worker's own user does not read its key"

echo "· each reads, and the coordinator removes, what the other has saved"
[ -n "$(inside find "/var/lib/gradsync/checkpoints/$begun" -name 'part-*' -user gradsync-trainer -group gradsync-worker -perm 640)" ] ||
  fail "checkpoints of the worker: $(inside ls -lR "/var/lib/gradsync/checkpoints/$begun")"
same "$(inside find "/var/lib/gradsync/checkpoints/$begun" -type d ! -perm 2770)" "" "directories that are not the group's"
first=$(inside find "/var/lib/gradsync/checkpoints/$begun" -name 'step-*' -user gradsync-trainer -printf '%f\n' | sort | sed -n '1s/step-0*\([0-9]*\)-.*/\1/p')
[ "$first" -gt "$saved" ] || fail "it began anew, and did not go on from step $saved: its first checkpoint is of step $first"
cli stop begun >/dev/null || fail stop
wait_for 60 "it ends" is_in begun cancelled
cli delete begun --purge >/dev/null || fail delete
wait_for 30 "its checkpoints go" test ! -e "$root/var/lib/gradsync/checkpoints/$begun"

echo "· a job is trained by what the service files start"
job packed 20 0
wait_for 60 "the end of the job" is_in packed succeeded
same "$(verified packed)" 20 "which checkpoint is verified"
ends "$worker" gradsync-worker
ends "$coordinator" gradsync-coordinator
worker='' coordinator=''
rm "$root/etc/gradsync/tls-key.pem"
! grep -h 'WARN\|ERROR\|level=warn\|level=error' "$work/coordinator.log" "$work/worker.log" | grep -i 'permission\|not permitted' || fail "something was refused"

echo "· an upgrade keeps settings, removal keeps them and data, purge takes the settings"
sed -i 's/"slots": 0/"slots": 3/' "$root/etc/gradsync/worker.json"
logged inside dpkg -i --force-confold "$(packed gradsync-worker)"
grep -q '"slots": 3' "$root/etc/gradsync/worker.json" || fail "an upgrade took settings back"
logged inside apt-get remove -y -qq gradsync gradsync-coordinator gradsync-worker "libgradsync$abi"
[ -e "$root/etc/gradsync/worker.json" ] && [ ! -e "$root/usr/bin/gradsync-worker" ] || fail "removal"
[ -n "$(find "$root/var/lib/gradsync/checkpoints" -name MANIFEST.json)" ] || fail "removal took what was trained"
logged inside apt-get purge -y -qq gradsync gradsync-coordinator gradsync-worker "libgradsync$abi"
[ ! -e "$root/etc/gradsync" ] || fail "purge left $(ls "$root/etc/gradsync")"
[ -n "$(find "$root/var/lib/gradsync/checkpoints" -name MANIFEST.json)" ] || fail "purge took what was trained"
inside sh -c 'find /etc /usr /lib /opt /srv -xdev -name "*gradsync*"' >"$work/left"
same "$(cat "$work/left")" "" "what is left"
echo "packages: made, installed, run, upgraded, removed, purged"
