#!/usr/bin/env bash
# What tests/gpu/machine.sh does with packages that a machine lacks: they go below a folder, a program is built and
# runs with them from there, and nothing of the machine itself changes. The package is made by hand, of names that
# no machine has, so that a mistake here does no harm.
set -euo pipefail
cd "$(dirname "$0")/../.."
work=$(mktemp -d)
name=gradsync-machine-test-$$
fail() { echo "FAILED: $*" >&2; exit 1; }
triplet=$(${CC:-cc} -print-multiarch)
[ -n "$triplet" ] || { echo "skipped: this compiler knows no multiarch folder"; exit 77; }
trap 'rm -rf "$work" "/$name" "/usr/share/$name" "/usr/lib/$triplet/libgradsyncthing"* /usr/include/gradsync_thing.h \
  "/usr/lib/$triplet/pkgconfig/gradsyncthing.pc"' EXIT

# A library as Debian packs one: headers, an absolute link, pkg-config's file with /usr, and a top
# folder that is not usr.
stage=$work/stage
mkdir -p "$stage/$name" "$stage/usr/include" "$stage/usr/share/$name" "$stage/usr/lib/$triplet/pkgconfig" "$work/debs"
echo 'int gradsync_thing(void) { return 42; }' >"$work/thing.c"
${CC:-cc} -shared -fPIC -Wl,-soname,libgradsyncthing.so.1 -o "$stage/usr/lib/$triplet/libgradsyncthing.so.1" "$work/thing.c"
ln -s "/usr/lib/$triplet/libgradsyncthing.so.1" "$stage/usr/lib/$triplet/libgradsyncthing.so"
echo 'int gradsync_thing(void);' >"$stage/usr/include/gradsync_thing.h"
touch "$stage/$name/file" "$stage/usr/share/$name/file"
cat >"$stage/usr/lib/$triplet/pkgconfig/gradsyncthing.pc" <<PC
prefix=/usr
libdir=/usr/lib/$triplet
Name: gradsyncthing
Description: a thing
Version: 1
Cflags: -I\${prefix}/include
Libs: -L\${libdir} -lgradsyncthing
PC
pack() { # PACKAGE FOLDER
  local at=$work/pack
  rm -rf "$at" && mkdir "$at"
  echo 2.0 >"$at/debian-binary"
  tar -czf "$at/control.tar.gz" --files-from /dev/null
  tar -cJf "$at/data.tar.xz" -C "$2" .
  (cd "$at" && ar rc "$1" debian-binary control.tar.gz data.tar.xz)
}
pack "$work/debs/libgradsyncthing1.deb" "$stage"

# shellcheck disable=SC2034
sim=1 build=$work/build
. tests/gpu/machine.sh
(
  why=
  GRADSYNC_DEBS=$work/debs find_libraries || fail "find_libraries: $why"
  [ ! -e "/$name" ] && [ ! -e "/usr/share/$name" ] || fail "the package was unpacked over the machine"
  [ -e "$build/packages/$name/file" ] || fail "the package is not below $build/packages"
  pkg-config --exists gradsyncthing || fail "pkg-config does not find the package"
  echo '#include <gradsync_thing.h>
int main(void) { return gradsync_thing() == 42 ? 0 : 1; }' >"$work/user.c"
  # shellcheck disable=SC2046
  ${CC:-cc} -o "$work/user" "$work/user.c" $(pkg-config --cflags --libs gradsyncthing) || fail "no program is built with it"
  "$work/user" || fail "the program does not run with it"
) || exit

# A second call starts anew: what an earlier set of packages left is gone.
mkdir "$work/empty" "$work/other"
pack "$work/empty/empty.deb" "$work/other"
(GRADSYNC_DEBS=$work/empty find_libraries && [ ! -e "$build/packages/$name" ]) || fail "an older package is still there"

# What would break every program, or is no package, is refused by name.
refused() { # FOLDER WORDS
  why=
  ! (GRADSYNC_DEBS=$1 find_libraries || { echo "$why" >"$work/why"; exit 1; }) || fail "$1 was taken"
  grep -q "$2" "$work/why" || fail "refused with: $(cat "$work/why")"
}
mkdir -p "$work/libc/lib/$triplet" "$work/libc-debs" "$work/broken"
touch "$work/libc/lib/$triplet/libc.so.6"
pack "$work/libc-debs/libc6.deb" "$work/libc"
refused "$work/libc-debs" "libc6 is among the packages"
echo nonsense >"$work/broken/broken.deb"
refused "$work/broken" "broken.deb cannot be unpacked" 2>/dev/null

# A library that only a toolkit or a Python package has; a name that was given stays.
mkdir -p "$work/python/nvidia/cu13/lib" "$work/local/cuda-13.0/lib64"
touch "$work/python/nvidia/cu13/lib/"{libcublasLt.so.$cublaslt_major,libcudnn.so.9} "$work/local/cuda-13.0/lib64/libcudnn.so.9"
(
  # shellcheck disable=SC2317
  ldconfig() { :; }
  unset GRADSYNC_CUBLASLT GRADSYNC_CUDNN GRADSYNC_NCCL
  export PYTHONPATH=$work/python
  toolkits=$work/local sim=0
  find_libraries || fail "find_libraries: $why"
  [ "${GRADSYNC_CUBLASLT:-}" = "$work/python/nvidia/cu13/lib/libcublasLt.so.$cublaslt_major" ] || fail "a Python package's cuBLASLt is not found"
  [ "${GRADSYNC_CUDNN:-}" = "$work/local/cuda-13.0/lib64/libcudnn.so.9" ] || fail "a toolkit's cuDNN is not found"
  [ -z "${GRADSYNC_NCCL:-}" ] || fail "NCCL is found where there is none: $GRADSYNC_NCCL"
  GRADSYNC_CUBLASLT=/mine
  find_libraries
  [ "$GRADSYNC_CUBLASLT" = /mine ] || fail "a library that was named is passed over"
  unset GRADSYNC_CUBLASLT
  # shellcheck disable=SC2317
  ldconfig() { printf '\tlibcublasLt.so.%s (libc6,x86-64) => /there\n' "$cublaslt_major"; }
  find_libraries
  [ -z "${GRADSYNC_CUBLASLT:-}" ] || fail "what the loader finds by itself is named: $GRADSYNC_CUBLASLT"

  # Attention by cuDNN: where the build has its headers and the machine its library, by whichever way the loader goes.
  # shellcheck disable=SC2317
  ldconfig() { :; }
  unset GRADSYNC_CUDNN LD_LIBRARY_PATH
  mkdir -p "$build" "$work/loaded"
  why=
  echo 'GRADSYNC_CUDNN_INCLUDE:PATH=GRADSYNC_CUDNN_INCLUDE-NOTFOUND' >"$build/CMakeCache.txt"
  ! has_cudnn || fail "a build without cuDNN's headers has cuDNN"
  [[ $why == *headers* ]] || fail "a build without cuDNN's headers says: $why"
  echo 'GRADSYNC_CUDNN_INCLUDE:PATH=/usr/include' >"$build/CMakeCache.txt"
  ! has_cudnn || fail "a machine without cuDNN has it"
  [[ $why == *libcudnn.so.9* ]] || fail "a machine without cuDNN says: $why"
  touch "$work/loaded/libcudnn.so.9"
  export LD_LIBRARY_PATH=/nowhere:$work/loaded
  has_cudnn || fail "cuDNN in LD_LIBRARY_PATH is not found"
) || exit

# An archive is taken where its programs start, and refused with the reason where they do not.
archive() { # CODE
  rm -rf "$work/gradsync-gpu"
  mkdir -p "$work/gradsync-gpu/tests"
  printf '#!/bin/sh\necho too old a library\nexit %d\n' "$1" >"$work/gradsync-gpu/tests/gpu_kernels"
  chmod +x "$work/gradsync-gpu/tests/gpu_kernels"
  printf 'commit: x\nservice: OFF\n' >"$work/gradsync-gpu/BUILT"
  tar -C "$work" -cJf "$work/archive.tar.xz" gradsync-gpu
}
export GRADSYNC_GPU_ARCHIVE=$work/archive.tar.xz
archive 0
(use_archive && [ "$service" = OFF ] && [ "$build" = "$work/build/archive/gradsync-gpu" ]) || fail "an archive that starts is refused"
archive 1
why=
! use_archive || fail "an archive that does not start is taken"
[[ $why == *"does not start here: too old a library"* ]] || fail "refused with: $why"
