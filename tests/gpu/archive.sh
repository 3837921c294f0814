#!/usr/bin/env bash
# One archive with what tests/gpu/run.sh and bench/gpu.sh run, made where nvcc is, for a machine that has a GPU and not much else:
# release, one generation of GPUs, no failpoints, lines for profilers, and beside the programs the libraries that they
# need, the C++ runtime too. cuBLASLt and NCCL are looked up on that machine: they are its driver's match, and large.
#
#   tests/gpu/archive.sh [--arch 90] [--build DIR] [--library] FILE.tar.xz
#   tests/gpu/archive.sh [--library] --programs   which those are, and nothing is built
#     --library    without the service (coordinator, worker, API, command line): no job, no models, which need the worker
# The archive's folder gradsync-gpu holds bin/, tests/, lib/ and a list of what was built; `GRADSYNC_GPU_ARCHIVE=FILE
# tests/gpu/run.sh` unpacks it below its build folder and builds nothing. The C library is the machine's: one that is older than
# this machine's may not start the programs, which run.sh then says, and builds.
set -euo pipefail
cd "$(dirname "$0")/../.."
arch=90 build=build/gpu-archive service=ON lists=0 file='' most_bytes=$((64 << 20))
while [ $# -gt 0 ]; do
  case $1 in
    --arch) arch=${2:?--arch needs a number}; shift ;;
    --build) build=${2:?--build needs a folder}; shift ;;
    --library) service=OFF ;;
    --programs) lists=1 ;;
    -*) sed -n '2,12p' "$0" >&2; exit 64 ;;
    *) file=$1 ;;
  esac
  shift
done
[ "$file$lists" != 0 ] || { sed -n '2,12p' "$0" >&2; exit 64; }
# A program's target has its name, but for the command line's.
programs=(tests/gpu_{kernels,nccl_ranks,cudnn_graph} bin/bench_gpu_kernels)
if [ $service = ON ]; then
  programs+=(tests/gpu_{device,stream,graph,models} tests/test_nccl{,_sums,_life,_lanes,_faults,_failures,_library}
    tests/test_multiprocess_update_ahead bin/bench_gpu_train bin/gradsync{-conformance,-worker,-coordinator,-api,})
fi
if [ $lists -eq 1 ]; then
  printf '%s\n' "${programs[@]}"
  exit
fi

# DT_RPATH, which holds for what a library needs as well: libopenblas comes with libgfortran, which a DT_RUNPATH of the
# program does not find. $ORIGIN is the loader's; CMake quotes it.
generator=()
! command -v ninja >/dev/null || generator=(-G Ninja)
# shellcheck disable=SC2016
cmake -S . -B "$build" "${generator[@]}" -DCMAKE_BUILD_TYPE=Release \
  -DGRADSYNC_CUDA=ON "-DCMAKE_CUDA_ARCHITECTURES=$arch-real" "-DGRADSYNC_SERVICE=$service" -DGRADSYNC_FAILPOINTS=OFF \
  -DCMAKE_C_FLAGS=-g1 -DCMAKE_CUDA_FLAGS=-lineinfo -DCMAKE_EXE_LINKER_FLAGS=-Wl,--disable-new-dtags \
  '-DCMAKE_BUILD_RPATH=$ORIGIN/../lib' >/dev/null
cached() { sed -n "s/^$1:[A-Z]*=\(\/.*\)/\1/p" "$build/CMakeCache.txt"; }
[ -n "$(cached GRADSYNC_CUDNN_INCLUDE)" ] || programs=("${programs[@]/tests\/gpu_cudnn_graph}")
mapfile -t programs < <(printf '%s\n' "${programs[@]}" | grep .)
mapfile -t targets < <(basename -a "${programs[@]}" | sed 's/^gradsync$/gradsync_cli/')
cmake --build "$build" -j "${GRADSYNC_BUILD_JOBS:-$(nproc)}" --target "${targets[@]}"

stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
root=$stage/gradsync-gpu
mkdir -p "$root/bin" "$root/tests" "$root/lib"
for program in "${programs[@]}"; do cp "$build/$program" "$root/$program"; done
# What the loader finds here, but for what is one with the machine's C library.
ldd "${programs[@]/#/$root/}" | sed -n 's/^\t\([^ ]*\) => \(\/[^ ]*\) .*/\1 \2/p' | sort -u |
  grep -Ev '^(ld-linux.*|lib(c|m|dl|rt|pthread|resolv|util|nsl|anl)\.so\.[0-9]+) ' |
  while read -r name from; do cp -L "$from" "$root/lib/$name"; done
# header_version FILE PREFIX: 9.19.0 where the header says so in macros PREFIX_MAJOR and so on, none where there is no such header.
header_version() {
  local version
  version=$(sed -n "s/^#define $2_\(MAJOR\|MINOR\|PATCH\|PATCHLEVEL\)[[:space:]]\+\([0-9]\+\).*/\2/p" "$1" 2>/dev/null | paste -sd.) || true
  echo "${version:-none}"
}
toolkit=$(dirname "$(dirname "$(readlink -f "$(PATH=$PATH:/usr/local/cuda/bin command -v nvcc)")")")
{
  echo "commit: $(git rev-parse --short HEAD)$(git diff --quiet HEAD || echo ', with changes')"
  echo "CUDA compiler: $(PATH=$PATH:/usr/local/cuda/bin nvcc --version | sed -n 's/.*release [^,]*, V\(.*\)/\1/p')"
  # Whose headers it was built with: what of these libraries it may look up. tests/gpu/machine.sh asks for cuDNN's.
  echo "cublaslt: $(header_version "$toolkit/include/cublas_api.h" CUBLAS_VER)"
  echo "cudnn: $(header_version "$(cached GRADSYNC_CUDNN_INCLUDE)/cudnn_version.h" CUDNN)"
  echo "nccl: $(header_version "$(cached GRADSYNC_NCCL_INCLUDE)/nccl.h" NCCL)"
  echo "arch: $arch"
  echo "service: $service"
} >"$root/BUILT"
tar -C "$stage" -cJf "$file" gradsync-gpu
bytes=$(stat -c %s "$file")
echo "$file: $((bytes >> 10)) KiB"
[ "$bytes" -le $most_bytes ] || { echo "archive.sh: $file is above $((most_bytes >> 20)) MiB" >&2; exit 1; }
