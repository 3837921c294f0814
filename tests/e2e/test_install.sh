#!/usr/bin/env bash
# What `cmake --install` leaves is enough for a program of one's own: the examples are built with the CMake
# package and with pkg-config, static and shared, without this tree, and learn what they are to.
set -euo pipefail
source_dir=$(cd "$(dirname "$0")/../.." && pwd)
build=${GRADSYNC_BUILD_DIR:-$source_dir/build/release}
command -v pkg-config >/dev/null || { echo "skipped: no pkg-config"; exit 77; }
[ -f "$build/gradsync/libgradsync.a" ] || { echo "skipped: $build has no libgradsync.a"; exit 77; }
# A sanitizer that the library was built with has to be linked by its user.
export CFLAGS=${SANITIZE_FLAGS:-} CXXFLAGS=${SANITIZE_FLAGS:-} LDFLAGS=${SANITIZE_FLAGS:-} CC=${CC:-cc} CXX=${CXX:-c++}
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

echo "== pkg-config, static and shared"
PKG_CONFIG_PATH=$(dirname "$(find "$work/prefix" -name gradsync.pc)")
libdir=$(dirname "$PKG_CONFIG_PATH")
export PKG_CONFIG_PATH
version=$(pkg-config --modversion gradsync)
mkdir "$work/static" "$work/shared"
for example in embed_reducer.c embed_sharded.c local_devices.c; do
  # shellcheck disable=SC2046,SC2086
  $CC $CFLAGS -O2 -Wall -Wextra -Werror "$work/examples/$example" \
    $(pkg-config --cflags --libs gradsync-static) -o "$work/static/${example%.*}" || fail "build of $example with pkg-config"
  # shellcheck disable=SC2046,SC2086
  $CC $CFLAGS -O2 -Wall -Wextra -Werror "$work/examples/$example" \
    $(pkg-config --cflags --libs gradsync) -Wl,-rpath,"$libdir" -o "$work/shared/${example%.*}" || fail "build of $example with the shared library"
done

echo "== C++ with every header, each first once"
includes=$(pkg-config --variable=includedir gradsync)
[ "$(basename "$includes")" = "gradsync-${version%.*}" ] || fail "headers of version $version are in $includes"
(cd "$includes" && find . -name '*.h' | sort | sed 's|^\./\(.*\)|#include "\1"|') >"$work/all.h"
[ "$(wc -l <"$work/all.h")" -ge 50 ] || fail "only $(wc -l <"$work/all.h") headers are installed"
tac "$work/all.h" >"$work/reverse.h"
for order in all reverse; do
  # shellcheck disable=SC2046,SC2086
  $CXX $CXXFLAGS -std=c++17 -O1 -Wall -Wextra -Wpedantic -Werror -include "$work/$order.h" "$work/examples/embed.cpp" \
    $(pkg-config --cflags --libs gradsync) -Wl,-rpath,"$libdir" -o "$work/shared/embed_$order" || fail "embed.cpp behind $order.h"
done

echo "== the shared library"
library=$libdir/libgradsync.so
soname=$(readelf -d "$library" | sed -n 's/.*SONAME.*\[\(.*\)\]/\1/p')
abi=$(sed -n 's/#define GS_ABI_VERSION //p' "$includes/core/version.h")
[ "$soname" = "libgradsync.so.$abi" ] || fail "the shared library calls itself $soname, the headers say $abi"
grep -qF "lib/libgradsync.so.$abi\`" "$source_dir/docs/embedding.md" || fail "docs/embedding.md installs another number than $abi"
for file in "$libdir/$soname" "$library.$version"; do [ -e "$file" ] || fail "there is no $file"; done
readelf -d "$library" | grep -E 'RPATH|RUNPATH' && fail "the shared library looks for others in folders of the build"
ldd -r "$library" >"$work/ldd" 2>&1
if [ -z "$CFLAGS" ] && grep -E 'not found|undefined' "$work/ldd"; then fail "the shared library lacks something"; fi

echo "== embed.cpp"
for program in "$work/build/embed" "$work/build/embed_shared" "$work/shared/embed_all" "$work/shared/embed_reverse"; do
  timeout 60 "$program" >"$work/out" 2>"$work/err" || { cat "$work/out" "$work/err"; fail "$program"; }
  [ "$(cat "$work/out")" = "slope 3.000, offset -1.000 with gradsync $version" ] || { cat "$work/out"; fail "$program"; }
done
cat "$work/out"

echo "== embed_reducer"
for program in "$work"/build/embed_reducer{,_shared} "$work"/{static,shared}/embed_reducer; do
  for ranks in 1 3; do
    timeout 60 "$program" $ranks >"$work/out" 2>"$work/err" || { cat "$work/out" "$work/err"; fail "$program with $ranks ranks"; }
    grep -q "the same bits on $ranks ranks" "$work/out" || { cat "$work/out"; fail "$ranks ranks do not agree"; }
    # It learned the truth.
    grep -q 'weight 1.000 to 8.000, bias -1.000' "$work/out" || { cat "$work/out"; fail "$ranks ranks did not learn"; }
  done
done
[ "$(grep -c loss "$work/out")" -ge 5 ] || fail "no losses printed"
cat "$work/out"

echo "== embed_sharded"
for program in "$work"/build/embed_sharded{,_shared} "$work"/{static,shared}/embed_sharded; do
  for ranks in 1 3; do
    timeout 60 "$program" $ranks >"$work/out" 2>"$work/err" || { cat "$work/out" "$work/err"; fail "$program with $ranks ranks"; }
    grep -q "the same bits on $ranks ranks, each with the state of" "$work/out" || { cat "$work/out"; fail "$ranks ranks do not agree"; }
  done
done
# Equal parts, whatever the layers, and less and less to learn.
grep -q 'the state of 3216 of 9600 elements' "$work/out" || { cat "$work/out"; fail "a third is not owned by each"; }
awk '/loss/ { if (seen && $NF > last / 2) exit 1; last = $NF; seen = 1 }' "$work/out" || { cat "$work/out"; fail "three ranks did not learn"; }
cat "$work/out"

echo "== local_devices"
for program in "$work"/build/local_devices{,_shared} "$work"/{static,shared}/local_devices; do
  for devices in 1 3; do
    timeout 60 "$program" $devices >"$work/out" 2>"$work/err" || { cat "$work/out" "$work/err"; fail "$program with $devices devices"; }
    grep -q "weight 1.000 to 8.000, words 1.000 to 4.000 on $devices devices" "$work/out" || { cat "$work/out"; fail "$devices devices did not learn"; }
  done
done
cat "$work/out"
