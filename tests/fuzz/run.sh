#!/usr/bin/env bash
# Fuzzes every decoder, two at a time: FUZZ_SECONDS each (default 600).
# Needs a nightly compiler; installs cargo-fuzz into .cache.
# Ends with 1 if any target found something.
set -euo pipefail
cd "$(dirname "$0")/../.."

seconds=${FUZZ_SECONDS:-600}
jobs=${FUZZ_JOBS:-2}
targets=("$@")
if [ ${#targets[@]} -eq 0 ]; then
    for file in tests/fuzz/fuzz_targets/*.rs; do
        targets+=("$(basename "$file" .rs)")
    done
fi
export PATH=$PWD/.cache/tools/bin:$PATH
command -v cargo-fuzz >/dev/null || cargo install -q --locked --root .cache/tools cargo-fuzz
mkdir -p out/fuzz
export LSAN_OPTIONS=suppressions=$PWD/tests/fuzz/lsan.txt:print_suppressions=0
cargo +nightly fuzz build --fuzz-dir tests/fuzz "${targets[@]:0:1}"
fuzz() {
    if cargo +nightly fuzz run --fuzz-dir tests/fuzz "$1" "out/fuzz/corpus-$1" -- \
        -max_total_time="$2" -rss_limit_mb=2048 -timeout=20 -print_final_stats=1 \
        -artifact_prefix="out/fuzz/$1-" >"out/fuzz/$1.log" 2>&1; then
        echo "$1: nothing found in $(sed -n 's/.*number_of_executed_units: //p' "out/fuzz/$1.log") runs"
    else
        echo "$1: FOUND SOMETHING, see out/fuzz/$1.log"
        return 1
    fi
}
export -f fuzz
for target in "${targets[@]}"; do
    python3 tests/corpora/make.py --unpack "$target" "out/fuzz/corpus-$target"
done
printf '%s\n' "${targets[@]}" | xargs -P "$jobs" -I{} bash -c 'fuzz {} '"$seconds"
