#!/usr/bin/env bash
# Tests of the crates that share memory, threads or pointers with others, built with a
# sanitizer of rustc's:
#
#   tests/sanitized/run.sh address|thread [CRATE...]
#
# Of named crates it runs the unit tests only, without names also integration tests.
# A report fails its test program. Sanitizers are unstable, so the stable compiler is told
# to be a nightly one. The thread sanitizer must also see what the standard library does,
# which is compiled with it from its sources (rustup component add rust-src).
set -euo pipefail
cd "$(dirname "$0")/../.."

sanitizer=${1:?address or thread}
crates=("${@:2}")
targets=(--lib)
if [ ${#crates[@]} -eq 0 ]; then
    crates=(communicator communicator-ring communicator-stream device-software client worker)
    # The other integration tests fork, filter system calls or measure memory, which the
    # sanitizers do not survive.
    for test in two_processes conformance suite events graph host_memory session; do
        targets+=(--test "$test")
    done
fi
target=$(rustc -vV | sed -n 's/^host: //p')
options=(--target "$target")
flags="-Zsanitizer=$sanitizer -Cdebuginfo=line-tables-only"
if [ "$sanitizer" = thread ]; then
    [ -d "$(rustc --print sysroot)/lib/rustlib/src/rust/library" ] || {
        echo "the standard library's sources are missing: rustup component add rust-src" >&2
        exit 1
    }
    options+=(-Zbuild-std)
    # The sanitizer sees memory come and go only by functions of the C library.
    flags+=" --cfg=rustix_use_libc"
fi
export RUSTC_BOOTSTRAP=1 RUSTFLAGS=$flags CARGO_TARGET_DIR=$PWD/target/sanitizer-$sanitizer
export LSAN_OPTIONS=suppressions=$PWD/tests/sanitized/lsan.txt:print_suppressions=0
export TSAN_OPTIONS=suppressions=$PWD/tests/sanitized/tsan.txt:print_suppressions=0
cargo test "${options[@]}" --no-fail-fast "${crates[@]/#/--package=paragpu-}" "${targets[@]}"
