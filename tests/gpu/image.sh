#!/usr/bin/env bash
# deploy/Containerfile.cuda, all of its stages, where nobody has NVIDIA's image: a bare Debian with this machine's toolkit stands for it. Then
# the worker in it starts as its own user, finds cuBLASLt and NCCL, and says that there is no driver. Root, with nvcc, podman and debootstrap; exit
# code 77 where one of them is missing.
#   tests/gpu/image.sh [NAME]    NAME: what the image is called (default: it is removed)
set -euo pipefail
cd "$(dirname "$0")/../.."
skip() { echo "SKIP image: $*"; exit 77; }
PATH=$PATH:/usr/local/cuda/bin
nvcc=$(command -v nvcc) || skip "no nvcc"
toolkit=$(dirname "$(dirname "$(readlink -f "$nvcc")")")
for program in podman debootstrap; do command -v $program >/dev/null || skip "no $program"; done
[ "$(id -u)" -eq 0 ] || skip "needs root for debootstrap"
work=$(mktemp -d) name=${1:-gradsync-image-test} base=localhost/gradsync-e2e-base
finish() {
  [ "$name" != gradsync-image-test ] || podman rmi -f "$name" >/dev/null 2>&1 || true
  podman rmi -f gradsync-image-test-cuda >/dev/null 2>&1 || true
  rm -rf --one-file-system "$work"
}
trap finish EXIT
if ! podman info >/dev/null 2>&1 || [ -z "${CONTAINERS_CONF:-}" ]; then  # as tests/e2e/test_containers.sh
  printf '[containers]\ndefault_ulimits = ["nofile=20000:20000", "nproc=20000:20000"]\n[engine]\nruntime = "runc"\n' >"$work/containers.conf"
  export CONTAINERS_CONF=$work/containers.conf
fi
if ! podman image exists "$base"; then
  # shellcheck disable=SC2016
  mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | head -n 1)
  debootstrap --variant=minbase --include=ca-certificates bookworm "$work/root" "$mirror" >"$work/debootstrap.log" 2>&1
  tar -C "$work/root" -c . | podman import - "$base" >/dev/null 2>&1
fi
podman run --rm "$base" true >"$work/run.log" 2>&1 || { tail -n 2 "$work/run.log"; skip "podman cannot run a container here"; }

# As NVIDIA's: a versioned folder and a link to it.
printf 'FROM %s\nCOPY . /usr/local/cuda-toolkit\nRUN ln -s cuda-toolkit /usr/local/cuda\n' "$base" >"$work/Containerfile"
podman build --format docker --layers=false -q -f "$work/Containerfile" -t gradsync-image-test-cuda "$toolkit" >/dev/null
podman build --format docker --network host --build-arg BASE="$base" --build-arg CUDA=localhost/gradsync-image-test-cuda --build-arg ARCHITECTURES="${ARCHITECTURES:-90-real}" \
  -f deploy/Containerfile.cuda --target worker -t "$name" . >"$work/build.log" 2>&1 || { tail -n 30 "$work/build.log"; exit 1; }
inside() { podman run --rm --network none --entrypoint "$1" "$name" "${@:2}" 2>&1; }
fail() { echo "FAILED: $*" >&2; exit 1; }
libraries=$(inside ldd /usr/local/bin/gradsync-worker) || fail "ldd: $libraries"
! grep 'not found' <<<"$libraries" || fail "the worker lacks a library"
for library in libcublasLt.so.13 libnccl.so.2; do
  grep -q "$library" <<<"$(inside ldconfig -p)" || fail "no $library in the image"
done
[ "$(inside id -u)" != 0 ] || fail "the worker is root"
said=$(inside gradsync-worker devices) || fail "gradsync-worker devices: $said"
grep -q 'no NVIDIA driver' <<<"$said" || fail "gradsync-worker devices says: $said"
echo "image: $(podman image inspect --format '{{.Size}}' "$name" | awk '{ printf "%.2f GB", $1 / 1e9 }'), $said"
