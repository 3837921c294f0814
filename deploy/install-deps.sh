#!/usr/bin/env bash
# Installs the Debian packages that gradsync needs; idempotent, says what it installs.
#   deploy/install-deps.sh [build] [run] [tour] [test] [containers]    (default: build)
set -euo pipefail

declare -A packages=(
  [build]="gcc g++ cmake ninja-build pkg-config git ca-certificates libzmq3-dev libjson-c-dev
           libmicrohttpd-dev libsqlite3-dev libopenblas-pthread-dev libsodium-dev libxxhash-dev
           libcurl4-openssl-dev libhwloc-dev zlib1g-dev"
  [run]="ca-certificates libzmq5 libjson-c5 libmicrohttpd12 libsqlite3-0 libopenblas0-pthread
         libsodium23 libxxhash0 libcurl4 libhwloc15 zlib1g"
  [tour]="curl jq"
  [test]="libcmocka-dev curl jq openssl prometheus iproute2 iptables procps python3 python3-jsonschema python3-yaml util-linux
          dpkg-dev libseccomp2 systemd"
  [containers]="podman podman-compose buildah runc debootstrap netavark aardvark-dns iptables"
)

wanted=()
for group in "${@:-build}"; do
  [ -n "${packages[$group]:-}" ] || { echo "install-deps: no group '$group'; one of: ${!packages[*]}" >&2; exit 64; }
  # shellcheck disable=SC2206
  wanted+=(${packages[$group]})
done

missing=()
for package in "${wanted[@]}"; do
  status=$(dpkg-query -W -f='${Status}' "$package" 2>/dev/null || true)
  [ "$status" = "install ok installed" ] || missing+=("$package")
done
if [ ${#missing[@]} -eq 0 ]; then
  exit 0
fi

echo "install-deps: installing ${missing[*]}"
as_root=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || { echo "install-deps: not root and no sudo; install by hand: ${missing[*]}" >&2; exit 77; }
  as_root=(sudo)
fi
export DEBIAN_FRONTEND=noninteractive
log=$(mktemp)
trap 'rm -f "$log"' EXIT
install_missing() {
  # A service that a package would start has no business on a build machine.
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 \
    apt-get install -y -qq --no-install-recommends "${missing[@]}" >"$log" 2>&1
}
if ! install_missing; then
  # An old package list is the usual reason.
  "${as_root[@]}" apt-get update -qq >"$log" 2>&1 || { cat "$log" >&2; exit 69; }
  install_missing || { cat "$log" >&2; exit 69; }
fi
