#!/usr/bin/env bash
# An archive of tests/gpu/archive.sh on a machine of another release that has nothing: it starts there, knows its kernels, computes
# what their CPU twins compute, says that there is no device, and where it has the service trains a small job on the CPU. Root, for
# debootstrap and chroot.
#   tests/gpu/dry_run.sh ARCHIVE [ROOT]    ROOT: a bare system that is there already (default: Debian trixie, made and removed)
set -euo pipefail
cd "$(dirname "$0")/../.."
archive=${1:?which archive} root=${2:-}
if [ -z "$root" ]; then
  root=$(mktemp -d)
  trap 'rm -rf --one-file-system "$root"' EXIT
  # shellcheck disable=SC2016
  mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | head -n 1)
  debootstrap --variant=minbase --include=xz-utils trixie "$root" "$mirror" >/dev/null
fi
rm -rf "$root/gradsync-dry" && mkdir -p "$root/gradsync-dry/tests" "$root/gradsync-dry/bench"
cp -r tests/gpu "$root/gradsync-dry/tests/"
mkdir -p "$root/gradsync-dry/tests/golden"
cp tests/golden/gpt2_tiny.safetensors "$root/gradsync-dry/tests/golden/"
cp bench/gpu.sh "$root/gradsync-dry/bench/"
cp "$archive" "$root/gradsync-dry/archive.tar.xz"
# The loader finds $ORIGIN by /proc.
# shellcheck disable=SC2016
unshare -m bash -c 'mount -t proc proc "$1/proc" && mount -t tmpfs tmpfs "$1/dev/shm" && exec chroot "$1" bash -euc "$2"' dry "$root" '
  cd /gradsync-dry
  says() { local code=0; wanted=$1 words=$2; shift 2; "$@" >said 2>&1 || code=$?; [ $code = "$wanted" ] && { [ -z "$words" ] || grep -q "$words" said; } || { echo "FAILED: $*: $code"; cat said; exit 1; }; }
  export GRADSYNC_GPU_ARCHIVE=$PWD/archive.tar.xz
  says 77 "no GPU here" tests/gpu/run.sh
  says 77 "no GPU here" bench/gpu.sh
  tar -xf archive.tar.xz
  says 0 "^cudnn: [0-9n]" cat gradsync-gpu/BUILT
  says 0 "" gradsync-gpu/tests/gpu_kernels --slots
  says 77 "no NVIDIA driver" gradsync-gpu/tests/gpu_kernels
  says 77 "no NVIDIA driver" gradsync-gpu/bin/bench_gpu_kernels --small
  if [ -e gradsync-gpu/bin/gradsync-worker ]; then
    says 0 "no NVIDIA driver" gradsync-gpu/bin/gradsync-worker devices
    says 0 "ok" gradsync-gpu/bin/gradsync-conformance gpt2 tests/golden/gpt2_tiny.safetensors
    says 0 "^loss .* over 40 points" tests/gpu/job.sh gradsync-gpu/bin --device cpu --layers 1 --batch 2 --steps 40
    grep "first step\|^loss" said
    says 0 "^loss .* over 40 points" tests/gpu/job.sh gradsync-gpu/bin --device cpu --ranks 2 --precision bf16 --layers 1 --batch 2 --steps 40
  fi
  # Were there a GPU, the archive would be taken, and each failure be a line before the table.
  printf "#!/bin/sh\ncase \$* in *query*) echo \"no GPU, 1 MiB, 580, 9.0\";; esac\n" >nvidia-smi
  chmod +x nvidia-smi
  says 1 "^FAILED kernels = CPU twins" env PATH="$PWD:$PATH" tests/gpu/run.sh
  grep -q "^archive  *ok" said || { cat said; exit 1; }
  ! grep -q "command not found\|No such file" said || { cat said; exit 1; }
  says 1 "^# FAILED found nothing to run on" env PATH="$PWD:$PATH" bench/gpu.sh
  ! grep -q "command not found\|No such file" said || { cat said; exit 1; }
'
echo "dry run: the archive starts in Debian $(cat "$root/etc/debian_version"), and says that there is no device"
