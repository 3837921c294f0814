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
holds gradsync-worker /usr/bin/gradsync-worker /usr/lib/systemd/system/gradsync-worker.service /etc/gradsync/worker.json
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
inside getent passwd gradsync | grep -q ':/var/lib/gradsync:.*nologin' || fail "no user gradsync"
same "$(inside stat -c '%U %a' /var/lib/gradsync)" "gradsync 750" "whose its data are"
for program in gradsync gradsync-coordinator gradsync-worker gradsync-api; do inside "$program" --version >/dev/null || fail "$program does not start"; done
inside ldconfig -p | grep -q "libgradsync.so.$abi" || fail "the loader does not find the library"

echo "· a job is trained by what the service files start"
start_of() { sed -n 's/^ExecStart=//p' "$root/usr/lib/systemd/system/$1.service"; }
# shellcheck disable=SC2046  # words
service() { exec chroot "$root" env -i PATH=/usr/bin:/bin STATE_DIRECTORY=/var/lib/gradsync setpriv --reuid gradsync --regid gradsync --clear-groups --no-new-privs --bounding-set=-all $(start_of "$1"); }
# At ports of its own: the machine's network is shared.
http=$((20000 + RANDOM % 5000)) control=$((25000 + RANDOM % 5000))
sed -i "s/:8470/:$http/; s/:8471/:$control/" "$root"/etc/gradsync/*.json
printf 'to be or not to be, that is the question. %.0s' {1..200} >"$root/var/lib/gradsync/data/text.txt"
service gradsync-coordinator >"$work/coordinator.log" 2>&1 &
coordinator=$!
service gradsync-worker >"$work/worker.log" 2>&1 &
worker=$!
cli() { inside GRADSYNC_SERVER="http://127.0.0.1:$http" HOME=/root gradsync "$@"; }
for _ in $(seq 100); do ! cli health >/dev/null 2>&1 || break; sleep 0.2; done
echo '{"name":"packed","model":{"kind":"gpt2","gpt2":{"layers":1,"heads":2,"channels":16,"context":16}},"data":{"kind":"bytes","train":"*.txt"},"steps":{"target":20}}' >"$root/tmp/job.json"
cli submit /tmp/job.json >"$work/submit.log" 2>&1 || { cat "$work/submit.log" "$work/coordinator.log"; fail submit; }
for _ in $(seq 300); do
  state=$(cli show packed -o json | sed -n 's/.*"state": *"\([a-z]*\)".*/\1/p' | head -n 1)
  case $state in succeeded | failed | cancelled) break ;; esac
  sleep 0.2
done
same "$state" succeeded "the job's state ($(cat "$work/coordinator.log" "$work/worker.log" | tail -n 5))"
for pid in "$worker" "$coordinator"; do kill -TERM "$pid"; wait "$pid" || fail "ended with $?"; done
worker='' coordinator=''

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
