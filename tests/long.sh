#!/usr/bin/env bash
# What takes too long for every run: whole grids of which tests/run.sh draws a part, more seeds, every test in a
# release build. Hours on two cores; it may be interrupted at any time and goes on where it was.
#   tests/long.sh [--list] [PATTERN…]
#   tests/long.sh simulate N [SEED]
#     --list    what there is, with what has passed for these sources
#     simulate  N histories of the coordinator's engine, from SEED on (drawn where none is given); nothing of it is remembered
#     PATTERN   only the items whose names match one of these (bash patterns: 'device/*')
# What has passed is remembered in build/long/, by the digest of the sources: a change starts anew. Its results, with
# date and command, go into docs/proofs.md.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
list=0
[ "${1:-}" = --list ] && { list=1; shift; }
patterns=("$@")
[ ${#patterns[@]} -gt 0 ] || patterns=('*')
# shellcheck source=tests/sanitizers.sh
. tests/sanitizers.sh
unset GRADSYNC_SAMPLE

# Without docs/, where the results go.
digest_sources() { { git ls-tree HEAD | grep -v $'\tdocs$'; git diff HEAD -- . ':!docs'; } | sha256sum | cut -c1-16; }
sources=$(digest_sources)
memory=build/long/$sources
mkdir -p "$memory" || exit

if [ "${1:-}" = simulate ]; then
  [[ ${2:-} =~ ^[1-9][0-9]*$ && ${3:-1} =~ ^[0-9]+$ ]] || { echo "simulate: says how many histories, and perhaps a seed: tests/long.sh simulate N [SEED]"; exit 64; }
  deploy/build.sh release test_simulation || exit
  exec build/release/tests/test_simulation --seed "${3:-$(od -An -N4 -tu4 /dev/urandom | tr -d ' ')}" --histories "$2"
fi
names=() presets=() targets=() commands=()
# item NAME PRESET TARGETS COMMAND: COMMAND is shell, run in the root with $build the preset's folder.
item() { names+=("$1") presets+=("$2") targets+=("$3") commands+=("$4"); }
# shellcheck disable=SC2016  # expanded where it runs
in_ctest='ctest --test-dir "$build" -j "$(nproc)" --output-on-failure --no-tests=error'

# The software CUDA machine: each kernel's whole grid, then each test in both modes, for several orders of everything
# that a device leaves open.
for seed in 1 2 3; do
  for family in activation attention batchnorm embedding layernorm loss low_rank matmul elementwise optim quantize reduce residuals; do
    item "device/kernels-$family-$seed" cuda-sim gpu_kernels "GRADSYNC_TEST_SEED=$seed \"\$build/tests/gpu_kernels\" $family"
  done
done
# Every shape of a matrix product timed, and without the library that multiplies.
item device/matmul-timed cuda-sim gpu_kernels "GRADSYNC_MATMUL_TIMING=all \"\$build/tests/gpu_kernels\" matmul"
item device/matmul-without-cublaslt cuda-sim gpu_kernels \
  "GRADSYNC_OWN_PRODUCTS=1 GRADSYNC_CUBLASLT=/nonexistent/libcublasLt.so \"\$build/tests/gpu_kernels\" matmul"
# What a bare machine with a GPU is brought, in a bare system of another release. With nvcc, as root.
# shellcheck disable=SC2016
item device/archive cuda gpu_kernels 'tests/gpu/archive.sh "$build/gpu.tar.xz" && tests/gpu/dry_run.sh "$build/gpu.tar.xz"'
# The image for GPUs, compiled inside from a bare Debian with this machine's toolkit. The same.
# shellcheck disable=SC2016
item device/image cuda gpu_kernels 'tests/gpu/image.sh'
# Both scripts for machines with a GPU from their first line to their last, small. What only a device shows they skip by name.
# shellcheck disable=SC2016
item device/scripts cuda-sim gpu_kernels \
  'cmake --preset cuda-sim -B "$build-scripts" -DGRADSYNC_BENCH=ON >/dev/null && cmake --build "$build-scripts" --target gpu_nccl_ranks product device_tests bench_gpu_kernels bench_gpu_train >/dev/null
   for script in tests/gpu/run.sh bench/gpu.sh; do $script --sim --build "$build-scripts"; done'
for seed in 1 2 3; do
  item "device/library-$seed" cuda-sim device_tests "CUDA_SIM_SEED=$seed $in_ctest -L '^cuda_sim\$' -E '^(test_nccl|test_multiprocess_device_training|e2e_)'"
  item "device/training-$seed" cuda-sim device_tests "CUDA_SIM_SEED=$seed $in_ctest -R '^test_multiprocess_device_training'"
  item "device/nccl-$seed" cuda-sim device_tests "CUDA_SIM_SEED=$seed $in_ctest -R '^test_nccl'"
done
# shellcheck disable=SC2016
item device/nccl-generations cuda-sim test_nccl_life 'GRADSYNC_NCCL_GENERATIONS=1000 CUDA_SIM_MODE=async "$build/tests/test_nccl_life" generations_leave_nothing_behind'

# Every recorded run on a device; those with a sharded state, of which CTest draws a part, not by CTest.
item device/conformance cuda-sim gradsync-conformance "$in_ctest -R '^conformance_.*_gpu\$' -E sharded"
# shellcheck disable=SC2016
item device/conformance-sharded cuda-sim gradsync-conformance \
  'GRADSYNC_TEST_DEVICE=cuda:0 "$build/bin/gradsync-conformance" train-mlp --sharded tests/golden/ddp_mlp/w?_{sgd,adamw}*.safetensors'

# Every file of what others have computed, of which CTest draws a part.
item conformance/all dev gradsync-conformance "GRADSYNC_RUNS=all $in_ctest -R '^conformance_' -LE gpu"

# Lives of the coordinator's engine, and whether they would see a bug that is planted into it.
for first in 1 200001 400001 600001 800001; do
  item "simulate/$first" release test_simulation "\"\$build/tests/test_simulation\" --seed $first --histories 200000 --rows 68"
done
item simulate/planted release test_simulation 'tests/simulation/planted.py --starts 3 .'
# The coordinator killed before each of its effects, under ranks that train nothing and under ones that do.
# shellcheck disable=SC2016
item coordinator/effects dev test_fault_coordinator_effects 'GRADSYNC_KILLS=200 "$build/tests/test_fault_coordinator_effects"'
# shellcheck disable=SC2016
item coordinator/effects-training dev 'test_fault_coordinator_effects gradsync-worker' \
  'GRADSYNC_KILLS=200 GRADSYNC_REAL_WORKERS=1 "$build/tests/test_fault_coordinator_effects"'
# Its disk full at each of its writes: for that one, for twenty, and until somebody is told.
# shellcheck disable=SC2016
item coordinator/full-disk dev test_fault_coordinator_full_disk \
  'GRADSYNC_FULL_WRITES=all "$build/tests/test_fault_coordinator_full_disk" a_full_disk_loses_nothing_that_was_promised'
# The same of errors of sync, close and rename.
# shellcheck disable=SC2016
item coordinator/disk-errors dev test_fault_coordinator_full_disk \
  'GRADSYNC_FULL_WRITES=all "$build/tests/test_fault_coordinator_full_disk" a_disk_that_gives_errors_loses_nothing_that_was_promised'
# Bits of its data directory flipped while it was away.
# shellcheck disable=SC2016
item coordinator/damage dev test_fault_coordinator_damage 'GRADSYNC_DAMAGES=1000 "$build/tests/test_fault_coordinator_damage"'
# Ten minutes without a coordinator, and a hundred that end one after the other.
# Not by CTest, which ends a test at its TIMEOUT whatever it is told.
# shellcheck disable=SC2016
item coordinator/rows release product \
  'GRADSYNC_DOWN_SECONDS=600 GRADSYNC_RESTARTS=100 GRADSYNC_BIN_DIR="$build/bin" tests/e2e/test_coordinator_rows.sh'
# 10,000 jobs one behind the other, of which 5,000 are kept: what they leave is that of those that are kept.
# shellcheck disable=SC2016
item coordinator/jobs release product \
  'tests/e2e/jobs_in_a_row.py --bin "$build/bin" --jobs 10000 --kept 5000 --marks 10 --warm 100'
# The same of 1,500 that are kept, so that what is there at 2,000 is there at 10,000; of trainers that are connections alone. Before the first
# mark the pools of all threads have filled (docs/performance.md).
# shellcheck disable=SC2016
item coordinator/simulated-jobs release 'product bench_control_worker' \
  'tests/e2e/jobs_in_a_row.py --simulated --bin "$build/bin" --jobs 10000 --kept 1500 --marks 5 --warm 1500 --slots 20 --most-start-bytes 500 --most-more-ms 100 --most-more-mib 12'
# Each of 10,000 changes is in the audit file, though the coordinator is killed ten times.
# shellcheck disable=SC2016
item api/audit release product 'tests/e2e/audit_calls.py --bin "$build/bin" --calls 10000 --kills 10'
# Requests made from the schemas, an hour of them.
# shellcheck disable=SC2016
item api/schemas release product 'GRADSYNC_BIN_DIR="$build/bin" tests/e2e/schema_calls.sh 3600'
# Pages of others in a browser (chromium of Debian).
# shellcheck disable=SC2016
item api/browser release product 'GRADSYNC_BIN_DIR="$build/bin" tests/e2e/test_browser.sh'
# Among 10,000 connections of nobody who has a token is answered.
# shellcheck disable=SC2016
item api/crowd release product 'tests/e2e/crowd.py --bin "$build/bin" --connections 10000 --seconds 30'
# A start beside 10,000 ended jobs and 100 that train: 0.3 s are usual, 1 s is meant.
# shellcheck disable=SC2016
item coordinator/restart release product 'bench/restart.py --build "$build" --most 3'

# The power goes, ten times.
# shellcheck disable=SC2016
item coordinator/power release product 'GRADSYNC_RUNS=all GRADSYNC_BIN_DIR="$build/bin" tests/e2e/test_power_loss.sh'

# Random models, plans, orders, worlds and types against a serial sum: worlds of 1 to 8; and random orders
# between lanes.
for preset in dev tsan; do
  for first in 1 101 201 301 401; do
    item "properties/$preset-$first" $preset test_multiprocess_reducer_properties \
      "PROPERTY_FIRST=$first PROPERTY_SEEDS=100 \"\$build/tests/test_multiprocess_reducer_properties\""
  done
  # shellcheck disable=SC2016
  item "properties/$preset-lanes" $preset test_multiprocess_comm_lane_orders \
    'PROPERTY_FIRST=1 PROPERTY_SEEDS=300 "$build/tests/test_multiprocess_comm_lane_orders"'
done
# Each pair of a job's options against a serial run.
# shellcheck disable=SC2016
item options/matrix dev test_multiprocess_option_matrix 'GRADSYNC_MATRIX=all "$build/tests/test_multiprocess_option_matrix"'
# The same for four ranks on two hosts, as far as they can tell: sums over two levels.
# shellcheck disable=SC2016
item options/hosts dev test_multiprocess_option_matrix \
  'GRADSYNC_MATRIX=all GRADSYNC_MATRIX_HOSTS=aabb "$build/tests/test_multiprocess_option_matrix"'
# Every parser of what comes from elsewhere, as tests/fuzz/CMakeLists.txt has them.
parsers=$(sed -n 's/^gradsync_fuzz(\([a-z_]*\) .*/\1/p' tests/fuzz/CMakeLists.txt)
[ -n "$parsers" ] || { echo "tests/fuzz/CMakeLists.txt names no target"; exit 70; }
for parser in $parsers; do
  mutations=2000000 rounds=
  # Of whole requests a server answers some thousands in a second.
  [ "$parser" = http_request ] && mutations=200000 rounds='GRADSYNC_FUZZ_ROUND=100000 '
  # Mutations of every file and message, without a fuzzer.
  item "fuzz/$parser" dev "fuzz_$parser" "\"\$build/tests/fuzz_$parser\" tests/fuzz/corpus/$parser $mutations"
  # The same entry points under a fuzzer that sees which edges an input takes (clang): ten million, and until the last million brings none.
  item "guided/$parser" fuzz "fuzz_${parser}_live" "${rounds}tests/fuzz/guided.sh \"\$build/bin/fuzz_${parser}_live\" tests/fuzz/corpus/$parser"
done
# Between hosts: ranks killed and frozen at drawn moments amid sums that reveal every contributor, packets dropped; and
# communicators that are made and left again and again.
# shellcheck disable=SC2016
item net/kills dev test_fault_net_sums 'GRADSYNC_KILLS=300 GRADSYNC_FREEZES=30 "$build/tests/test_fault_net_sums"'
# shellcheck disable=SC2016
item net/hosts dev test_fault_hosts_sums 'GRADSYNC_FREEZES=30 "$build/tests/test_fault_hosts_sums"'
# shellcheck disable=SC2016
item net/packets dev test_fault_net_packets 'for i in {1..10}; do "$build/tests/test_fault_net_packets"; done'
# shellcheck disable=SC2016
item net/formations release test_fault_net_generations \
  'GRADSYNC_FORMATIONS=1000 "$build/tests/test_fault_net_generations" all_communicators_form'
# shellcheck disable=SC2016
item net/generations release test_fault_net_generations \
  'GRADSYNC_GENERATIONS=300 "$build/tests/test_fault_net_generations" generations_leave_nothing_behind'
# What users run: every program and test compiled with its warnings, every test run with its optimisations.
item release/all release all "$in_ctest -L 'unit|multiprocess|fault' -LE gpu"
# shellcheck disable=SC2016
item cuts/grid release product 'GRADSYNC_RUNS=all GRADSYNC_BIN_DIR="$build/bin" tests/e2e/test_cuts.sh'
# shellcheck disable=SC2016
item cuts/clocks release product 'GRADSYNC_RUNS=all GRADSYNC_BIN_DIR="$build/bin" tests/e2e/test_clocks.sh'
# shellcheck disable=SC2016
item cuts/suspended release product 'GRADSYNC_RUNS=all GRADSYNC_BIN_DIR="$build/bin" tests/e2e/test_suspended.sh'
# shellcheck disable=SC2016
item cuts/looks dev product 'GRADSYNC_RUNS=all GRADSYNC_BIN_DIR="$build/bin" tests/e2e/test_looks.sh'
# shellcheck disable=SC2016
item cuts/60-seconds release product 'GRADSYNC_RUNS=all GRADSYNC_CUT_SECONDS=60 GRADSYNC_BIN_DIR="$build/bin" tests/e2e/test_cuts.sh'
# shellcheck disable=SC2016
item cuts/halves-60-seconds release product 'GRADSYNC_RUNS=all GRADSYNC_CUT_SECONDS=60 GRADSYNC_BIN_DIR="$build/bin" tests/e2e/test_halves.sh'
# shellcheck disable=SC2016
item hosts/four release product 'GRADSYNC_RUNS=all GRADSYNC_BIN_DIR="$build/bin" tests/e2e/test_four_hosts.sh'
item containers release product 'GRADSYNC_IMAGES=source GRADSYNC_BIN_DIR="$build/bin" tests/e2e/test_containers.sh'
# Packages installed in a bare Debian, run there and removed.
# shellcheck disable=SC2016
item packages release 'product library' 'GRADSYNC_PACKAGES=install GRADSYNC_BUILD_DIR="$build" tests/e2e/test_packages.sh'
# The Kubernetes manifests against the schemas of several versions.
# shellcheck disable=SC2016
item deployment/schemas release product \
  'python3 -m venv --system-site-packages "$build/schemas" && "$build/schemas/bin/pip" install -q kubernetes-validate && "$build/schemas/bin/python" tests/deployment.py --schemas . "$build/bin"'
item release/e2e release 'product library gradsync_shared_plain' "$in_ctest -L e2e"
# What has threads, of which the long tests are drawn.
item asan/all cuda-sim all "CUDA_SIM_DEVICES=0 $in_ctest -LE 'gpu|cuda_sim|shipped'"
item tsan/threads tsan 'product thread_tests' "$in_ctest -L threads"
item release/training-digests release product "GRADSYNC_RUNS=all $in_ctest -R '^e2e_training_digests\$'"
# Faults, twenty times: what hangs on the order in which processes die.
for preset in dev tsan; do
  item "faults/$preset" $preset all "GRADSYNC_RUNS=all $in_ctest -L '^fault\$' --repeat until-fail:20 --timeout 1800"
done

is_wanted() {
  local pattern
  # shellcheck disable=SC2053  # a pattern
  for pattern in "${patterns[@]}"; do [[ $1 == $pattern ]] && return; done
  return 1
}
run_item() {
  local name=${names[$1]} preset=${presets[$1]} since=$SECONDS code=0
  local build=build/$preset log=$memory/${name//\//.}.log reports=$PWD/$memory/${name//\//.}.report
  rm -f "$reports".*
  # shellcheck disable=SC2086
  deploy/build.sh "$preset" ${targets[$1]} || return
  [ "$(digest_sources)" = "$sources" ] || { echo "$name: the sources have changed since the start"; exit 1; }
  (
    report_to "$reports"
    [ "$preset" != cuda-sim ] || export GRADSYNC_DEMAND_DEVICE=1
    export build
    "${no_aslr[@]}" bash -c "set -e; ${commands[$1]}"
  ) >"$log" 2>&1 || code=$?
  if compgen -G "$reports.*" >/dev/null; then
    cat "$reports".* >>"$log"
    code=1
  fi
  [ $code -eq 0 ] || { echo "--- $name: exit code $code, the end of $log"; tail -n 30 "$log"; return 1; }
  echo "$(date -u +%F) $((SECONDS - since)) s" >"$memory/${name//\//.}.passed"
}

{  # read whole, so that an edit of this file changes no run
failed=0 passed=0 seconds=$SECONDS
for i in "${!names[@]}"; do
  is_wanted "${names[i]}" || continue
  mark=$memory/${names[i]//\//.}.passed
  if [ $list -eq 1 ]; then
    printf '%-32s %s\n' "${names[i]}" "$(cat "$mark" 2>/dev/null || echo '-')"
  elif [ -e "$mark" ]; then
    passed=$((passed + 1))
  elif run_item "$i"; then
    passed=$((passed + 1))
    printf '%-32s passed  %s\n' "${names[i]}" "$(cat "$mark")"
  else
    failed=$((failed + 1))
    printf '%-32s FAILED\n' "${names[i]}"
  fi
done
[ $list -eq 1 ] && exit
commit=$(git rev-parse --short HEAD)
git diff --quiet HEAD || commit+=', with changes'
[ $((passed + failed)) -gt 0 ] || { echo "no item matches"; exit 64; }
echo "| $(date -u +%F) | $commit | \`tests/long.sh${*:+ $*}\` | $passed passed, $failed failed | $((SECONDS - seconds)) s now |"
[ $failed -eq 0 ]
exit
}
