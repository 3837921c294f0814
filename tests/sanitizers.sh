# shellcheck shell=bash disable=SC2034  # names that the caller reads
# How tests are run under sanitizers, sourced by tests/run.sh and tests/long.sh in the root of the tree.

# ThreadSanitizer cannot place its shadow under the address randomisation of newer kernels.
no_aslr=()
setarch "$(uname -m)" -R true 2>/dev/null && no_aslr=(setarch "$(uname -m)" -R)

export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=1:abort_on_error=0:detect_stack_use_after_return=0}
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1}
export TSAN_OPTIONS=${TSAN_OPTIONS:-suppressions=$PWD/tests/tsan.supp:history_size=4}
export LSAN_OPTIONS=${LSAN_OPTIONS:-suppressions=$PWD/tests/lsan.supp:print_suppressions=0}
export OPENBLAS_NUM_THREADS=1

# report_to PATH: each process that has something to report writes PATH.<its number>, so that nobody's report is lost
# with the output of a daemon.
report_to() {
  ASAN_OPTIONS+=:log_path=$1 UBSAN_OPTIONS+=:log_path=$1 TSAN_OPTIONS+=:log_path=$1
}
