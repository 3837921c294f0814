#!/usr/bin/env bash
# What `cmake --install` leaves is enough for a program of one's own: the examples are built with the CMake
# package and with pkg-config, without this tree, and learn what they are to.
set -euo pipefail
source_dir=$(cd "$(dirname "$0")/../.." && pwd)
build=${GRADSYNC_BUILD_DIR:-$source_dir/build/release}
command -v pkg-config >/dev/null || { echo "skipped: no pkg-config"; exit 77; }
[ -f "$build/gradsync/libgradsync.a" ] || { echo "skipped: $build has no libgradsync.a"; exit 77; }
# A sanitizer that the library was built with has to be linked by its user.
export CFLAGS=${SANITIZE_FLAGS:-} LDFLAGS=${SANITIZE_FLAGS:-} CC=${CC:-cc}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "FAILED: $*" >&2; exit 1; }

cmake --install "$build" --prefix "$work/first" --component library >"$work/install.log"
# Nothing in it knows where it was installed.
mv "$work/first" "$work/prefix"
grep -rlF "$source_dir" "$work/prefix" --include=*.cmake --include=*.pc --include=*.h && fail "the package names the source tree"
cp -r "$source_dir/examples" "$work/examples"

echo "== CMake package"
cmake -S "$work/examples" -B "$work/build" -DCMAKE_BUILD_TYPE=Release -DCMAKE_PREFIX_PATH="$work/prefix" >"$work/cmake.log" 2>&1 || { cat "$work/cmake.log"; fail "find_package"; }
cmake --build "$work/build" >"$work/cmake.log" 2>&1 || { cat "$work/cmake.log"; fail "build with the CMake package"; }

echo "== pkg-config"
PKG_CONFIG_PATH=$(dirname "$(find "$work/prefix" -name gradsync.pc)")
export PKG_CONFIG_PATH
for example in embed_reducer local_devices; do
  # shellcheck disable=SC2046,SC2086
  $CC $CFLAGS -O2 -Wall -Wextra -Werror "$work/examples/$example.c" \
    $(pkg-config --cflags --libs --static gradsync) -o "$work/$example" || fail "build of $example with pkg-config"
done

echo "== embed_reducer"
for program in "$work/build/embed_reducer" "$work/embed_reducer"; do
  for ranks in 1 3; do
    timeout 60 "$program" $ranks >"$work/out" 2>"$work/err" || { cat "$work/out" "$work/err"; fail "$program with $ranks ranks"; }
    grep -q "the same bits on $ranks ranks" "$work/out" || { cat "$work/out"; fail "$ranks ranks do not agree"; }
    # It learned the truth.
    grep -q 'weight 1.000 to 8.000, bias -1.000' "$work/out" || { cat "$work/out"; fail "$ranks ranks did not learn"; }
  done
done
[ "$(grep -c loss "$work/out")" -ge 5 ] || fail "no losses printed"
cat "$work/out"

echo "== local_devices"
for program in "$work/build/local_devices" "$work/local_devices"; do
  for devices in 1 3; do
    timeout 60 "$program" $devices >"$work/out" 2>"$work/err" || { cat "$work/out" "$work/err"; fail "$program with $devices devices"; }
    grep -q "weight 1.000 to 8.000, words 1.000 to 4.000 on $devices devices" "$work/out" || { cat "$work/out"; fail "$devices devices did not learn"; }
  done
done
cat "$work/out"
