# shellcheck shell=bash disable=SC2034,SC2154  # names that the caller sets or reads
# What tests/gpu/run.sh and bench/gpu.sh have in common, sourced by both: the machine's GPU and libraries, the
# build for them. `sim` and `build` are the caller's.
cublaslt_major=13    # CUBLAS_VER_MAJOR of the build
toolkits=/usr/local  # where toolkits lie that are no packages
has() { command -v "$1" >/dev/null; }
say_commit() {
  local commit
  commit=$(git rev-parse --short HEAD 2>/dev/null) || { echo none; return; }
  git diff --quiet HEAD 2>/dev/null || commit+=", with changes"
  echo "$commit"
}
say_compiler() { has nvcc && nvcc --version | sed -n 's/.*release [^,]*, V\(.*\)/\1/p' || echo none; }

# find_device SCRIPT: what there is to run on; without a GPU or its compiler the script is over.
find_device() {
  export PATH=$PATH:/usr/local/cuda/bin
  capability='' num_gpus=1
  device="simulated (tests/cuda_sim): nothing here was measured on a GPU"
  [ "$sim" -eq 0 ] || return 0
  device=$(nvidia-smi --query-gpu=name,memory.total,driver_version,compute_cap --format=csv,noheader 2>/dev/null | head -n 1)
  [ -n "$device" ] || { echo "$1: skipped: nvidia-smi finds no GPU here (--sim rehearses without one)"; exit 77; }
  has nvcc || [ -n "${GRADSYNC_GPU_ARCHIVE:-}" ] ||
    { echo "$1: skipped: no nvcc in PATH or /usr/local/cuda/bin, and no GRADSYNC_GPU_ARCHIVE (tests/gpu/archive.sh)"; exit 77; }
  capability=${device##*, }
  [ "$(nvidia-smi -L 2>/dev/null | grep -c '^GPU ')" -lt 2 ] || num_gpus=2
}

# use_archive: programs that tests/gpu/archive.sh has made elsewhere, below the build folder instead of a build. Fails, with
# `why`, where there is none or where it does not start here: then one builds.
use_archive() {
  local root=$build/archive/gradsync-gpu
  [ -n "${GRADSYNC_GPU_ARCHIVE:-}" ] || { why="no archive"; return 1; }
  rm -rf "$build/archive"
  mkdir -p "$build/archive" || { why="$build cannot be made"; return 1; }
  if ! tar -C "$build/archive" -xf "$GRADSYNC_GPU_ARCHIVE" || [ ! -s "$root/BUILT" ]; then
    why="$GRADSYNC_GPU_ARCHIVE cannot be unpacked"
    return 1
  fi
  if ! why=$("$root/tests/gpu_kernels" --slots 2>&1); then
    why="$GRADSYNC_GPU_ARCHIVE does not start here: $(head -n 1 <<<"$why")"
    return 1
  fi
  built=$(tr '\n' ';' <"$root/BUILT")
  service=$(sed -n 's/^service: //p' "$root/BUILT")
  missing=('the service' 'in this archive')
  build=$root
}

# unpack_packages ROOT PACKAGE…: Debian packages below ROOT, a folder that is made anew, never over the machine's own
# files: a package with ./lib/… would replace the link /lib, and with it every program. `ar` comes with the
# compiler, dpkg is not everywhere. What was written for / is turned to ROOT: links, and pkg-config's files.
unpack_packages() {
  local root=$1 package member link
  shift
  rm -rf "$root" && mkdir -p "$root" || return
  for package in "$@"; do
    member=$(ar t "$package" | grep -m 1 '^data\.tar')
    if [ -z "$member" ] || ! ar p "$package" "$member" >"$root/.data.tar" || ! tar -xf "$root/.data.tar" -C "$root"; then
      why="GRADSYNC_DEBS: $package cannot be unpacked"
      return 1
    fi
  done
  rm -f "$root/.data.tar"
  find "$root" -type l -lname '/*' | while read -r link; do ln -sfn "$root$(readlink "$link")" "$link"; done
  find "$root" -name '*.pc' -type f -exec sed -i -E "s#(^|[=[:space:]]|-[IL])/usr#\1$root/usr#g" {} +
}

# use_packages ROOT: pkg-config, CMake, loader and shell find what lies there; the machine's own programs come first.
# Not CPATH and LIBRARY_PATH: pkg-config leaves out what they name, and CMake then does not find it.
use_packages() {
  local root=$1 folder
  if [ -n "$(find "$root" -name 'libc.so.6' -print -quit)" ]; then
    why="GRADSYNC_DEBS: libc6 is among the packages, and no program here would start with it; leave it out"
    return 1
  fi
  # Unpacked, not installed: nobody has set Debian's alternatives, so openblas-pthread is a folder to look into.
  while read -r folder; do
    export LD_LIBRARY_PATH=$folder${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  done < <(find "$root" -name '*.so*' -printf '%h\n' | grep -E '/lib(64)?(/[a-z0-9_]+-linux-gnu)?(/openblas-pthread)?$' | sort -u)
  while read -r folder; do
    export PKG_CONFIG_PATH=$folder${PKG_CONFIG_PATH:+:$PKG_CONFIG_PATH}
  done < <(find "$root" -type d -name pkgconfig | sort)
  export PATH=$PATH:$root/usr/bin:$root/bin CMAKE_PREFIX_PATH=$root/usr${CMAKE_PREFIX_PATH:+:$CMAKE_PREFIX_PATH}
}

loader_finds() { # SONAME
  local folder
  ! grep -q "$1 " <<<"$(ldconfig -p 2>/dev/null)" || return 0  # not through a pipe, which grep would leave early
  while read -r -d : folder; do
    [ -z "$folder" ] || [ ! -e "$folder/$1" ] || return 0
  done <<<"${LD_LIBRARY_PATH:-}:"
  return 1
}

# find_library VARIABLE SONAME: names the file of a library that the loader does not find by itself: a toolkit's that nobody told
# it of, or a Python package's, whose folder is nvidia/cublas/lib or nvidia/cu13/lib.
find_library() {
  local variable=$1 name=$2 folder file
  [ -z "${!variable:-}" ] || return 0
  ! loader_finds "$name" || return 0
  for file in "$toolkits"/cuda*/lib64/"$name" "$toolkits"/cuda*/targets/*/lib/"$name"; do
    [ ! -e "$file" ] || { export "$variable=$file"; return 0; }
  done
  while read -r folder; do
    for file in "$folder"/*/lib/"$name"; do
      [ ! -e "$file" ] || { export "$variable=$file"; return 0; }
    done
  done < <("${python:-python3}" -c 'import nvidia; print(*nvidia.__path__, sep="\n")' 2>/dev/null)
}

find_libraries() {
  if [ -n "${GRADSYNC_DEBS:-}" ]; then
    local root
    if ! mkdir -p "$build" || ! root=$(cd "$build" && pwd)/packages; then
      why="$build cannot be made"
      return 1
    fi
    unpack_packages "$root" "$GRADSYNC_DEBS"/*.deb && use_packages "$root" || return
  fi
  # NCCL's header may be that of a Python package.
  local nccl
  nccl=$(python3 -c 'import nvidia.nccl, sys; sys.stdout.write(list(nvidia.nccl.__path__)[0])' 2>/dev/null || true)
  [ -z "$nccl" ] || export NCCL_HOME=${NCCL_HOME:-$nccl}
  [ "$sim" -eq 0 ] || return 0  # the software machine has stand-ins of its own
  find_library GRADSYNC_CUBLASLT "libcublasLt.so.$cublaslt_major"
  find_library GRADSYNC_CUDNN libcudnn.so.9
  find_library GRADSYNC_NCCL libnccl.so.2
}

# has_cudnn: whether attention by cuDNN is worth asking for; where not, `why`: the programs fail where they are asked for it and
# do not have it.
has_cudnn() {
  if [ -n "${built:-}" ]; then
    grep -q '^cudnn: [0-9]' "$build/BUILT" || { why="the archive was built without cuDNN's headers"; return 1; }
  elif ! grep -q '^GRADSYNC_CUDNN_INCLUDE:PATH=/' "$build/CMakeCache.txt" 2>/dev/null; then
    why="built without cuDNN's headers"
    return 1
  fi
  [ "$sim" -eq 1 ] || [ -n "${GRADSYNC_CUDNN:-}" ] || loader_finds libcudnn.so.9 || { why="no libcudnn.so.9 here"; return 1; }
}

# What can be built here. Fails, with `why`, when not even the library can.
find_targets() {
  local module
  missing=() service=ON
  for module in libzmq json-c libmicrohttpd sqlite3 hwloc libcurl libsodium; do
    pkg-config --exists "$module" 2>/dev/null || missing+=("$module") service=OFF
  done
  for module in libxxhash openblas; do
    pkg-config --exists "$module" 2>/dev/null && continue
    why="$module is needed for the library too (deploy/install-deps.sh, or GRADSYNC_DEBS)"
    return 1
  done
  targets=(gpu_kernels gpu_nccl_ranks)
  [ $service = OFF ] || targets+=(product)
}

# build_targets TARGET…: configures where nobody has, and builds. `build_command` is the same for a child, which
# `timeout` can end.
build_command() { echo "$(declare -p build sim service capability); $(declare -f has build_targets); build_targets $*"; }
build_targets() {
  if [ ! -e "$build/CMakeCache.txt" ]; then
    # Warnings of a compiler that nobody here has seen end nothing.
    local options=(-DGRADSYNC_WERROR=OFF "-DGRADSYNC_SERVICE=$service" -DGRADSYNC_FAILPOINTS=ON)
    has ninja && options+=(-G Ninja)
    if [ "$sim" -eq 1 ]; then
      options+=(-DGRADSYNC_CUDA=SIM -DCMAKE_BUILD_TYPE=Debug -DCMAKE_C_FLAGS=-Og)
    else
      options+=(-DGRADSYNC_CUDA=ON -DCMAKE_BUILD_TYPE=Release "-DCMAKE_CUDA_ARCHITECTURES=${capability/./}-real")
    fi
    # A half-made cache would look like a made one.
    cmake -S . -B "$build" "${options[@]}" || { rm -f "$build/CMakeCache.txt"; return 1; }
  fi
  cmake --build "$build" -j "$(nproc)" --target "$@"
}
