#!/usr/bin/env bash
# Tests and benchmarks on this machine's NVIDIA GPU, with programs that were built or copied
# here and without a network.
#
# usage: gpu.sh [test|moves|felt|vm|bench|quick|experiments|lammps|vms|shares|pair|all] [FOLDER]
#        gpu.sh vm-frameworks [FOLDER [ARGUMENT...]]
#
# test: every program, compared with native, and moved in the middle of a run.
# moves: only that. felt: what programs feel of their moves. vm: every program in a VM over pci. bench: the whole benchmark.
# quick: a short one. experiments: the published ones, repeated. lammps: LAMMPS's part
# of them, after a comparison with native. vms: time against the number of sessions.
# shares: weights and caps of GPU time, in two minutes.
# pair: what takes two GPUs, in about five minutes: peer access, managed memory and its moves between
# them, managed variables and pools, and every function that names a device, with the second one.
# Needs nvcc, and out/prototypes.json (`make prototypes`).
# vm-frameworks: PyTorch, CuPy, Triton and JAX in a VM over pci, with this machine's Python and
# wheels; the arguments go to tests/frameworks/test_gpu_vm.py.
# all (default): test, then quick. Results go to FOLDER (default: out). Without a GPU
# it says so and ends with 0.
set -euo pipefail
case ${1:-} in -h | --help) exec sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" ;; esac
cd "$(dirname "$0")/../.."
what=all
case ${1:-} in
test | moves | felt | vm | vm-frameworks | bench | quick | experiments | lammps | vms | shares | pair | all)
    what=$1
    shift
    ;;
'' | */* | out) ;;
*)
    [ -d "$1" ] || { echo "gpu.sh: $1 is neither a test nor a folder: see gpu.sh --help" >&2 && exit 1; }
    ;;
esac
folder=${1:-out}
[ $# = 0 ] || shift

# The question needs no binaries: without a folder of them the import would build.
if ! reason=$(cd tests/bench && PARAGPU_TEST_BINARIES=none python3 -c 'import gpu
try:
    gpu.probe()
except gpu.NoGpu as why:
    print(why)
    raise SystemExit(1)' 2>&1); then
    echo "skipped: $reason"
    exit 0
fi

built=true
for file in target/release/paragpud target/release/paragpu-worker target/release/paragpu-bench \
    out/lib/libcuda.so.1 out/lib/libcudart.so.13 out/programs/vectorAdd out/bench/overheads; do
    [ -e "$file" ] || built=false
done
kit=${PARAGPU_TEST_KIT:-out/gpu-kit}
if [ -e "$kit/lammps/lmp" ]; then
    chmod a+x "$kit/lammps/lmp" 2>/dev/null || true
    export PARAGPU_TEST_LAMMPS=${PARAGPU_TEST_LAMMPS:-$(cd "$kit/lammps" && pwd)}
fi
if ! $built && [ -d "$kit" ]; then
    kit=$(cd "$kit" && pwd)
    # Copied files may have lost their mode.
    chmod a+x "$kit"/bin/* "$kit"/programs/* "$kit/overheads" "$kit/conformance" 2>/dev/null || true
    export PARAGPU_TEST_BINARIES=$kit/bin PARAGPU_TEST_LIBRARIES=$kit/lib PARAGPU_TEST_PROGRAMS=$kit/programs
    export PARAGPU_TEST_OVERHEADS=$kit/overheads PARAGPU_TEST_NATIVE=$kit/native PARAGPU_TEST_CONFORMANCE=$kit/conformance
else
    $built || make build programs bench-programs
    export PARAGPU_TEST_BINARIES=$PWD/target/release
fi

mkdir -p "$folder"
status=0 processes=()
export PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
if [ "$what" = test ] || [ "$what" = all ]; then
    python3 tests/bench/test_gpu.py --output "$folder/test-gpu.json" --log "$folder/test-gpu-daemon.log" || status=1
fi
case $what in
moves)
    python3 tests/bench/test_gpu.py --moves --log "$folder/test-gpu-moves.log" || status=1
    ;;
felt)
    python3 tests/bench/bench_migrate.py --output "$folder/bench-felt.json" --rounds 5 felt || status=1
    ;;
vm | vm-frameworks)
    if [ -e "$kit/vm.tar.xz" ] && ! $built; then
        carried=$(mktemp -d)
        trap 'rm -rf "$carried"' EXIT
        tar -C "$carried" -xJf "$kit/vm.tar.xz"
        export PARAGPU_TEST_VM=$carried/vm PATH=$carried/vm/bin:$PATH
    fi
    if [ "$what" = vm ]; then
        python3 tests/bench/test_gpu.py --vm --output "$folder/test-gpu-vm.json" --log "$folder/test-gpu-vm-daemon.log" || status=1
    else
        python3 tests/frameworks/test_gpu_vm.py --output "$folder/vm-frameworks.json" --log "$folder/vm-frameworks-daemon.log" \
            --logs "$folder/vm-frameworks" "$@" || status=1
    fi
    ;;
bench)
    python3 tests/bench/bench_gpu.py --output "$folder/bench-gpu.json" --log "$folder/bench-gpu-daemon.log" || status=1
    ;;
experiments)
    python3 tests/bench/experiments.py "$folder/experiments" || status=1
    ;;
lammps)
    python3 tests/frameworks/test_lammps.py || status=1
    python3 tests/bench/experiments.py --only lammps --rounds "${ROUNDS:-3}" "$folder/lammps" || status=1
    ;;
vms)
    python3 tests/bench/bench_vms.py --as sessions "$folder/bench-vms" || status=1
    ;;
shares)
    PARAGPU_TEST_DEVICE=cuda python3 tests/pool/shares.py --output "$folder/shares.json" || status=1
    ;;
pair)
    # Side by side, because none is a measurement.
    tests=()
    for name in over_every_communicator they_move_together one_of_two_moves_where_neither_reaches_the_other \
        both_may_move_to_one_gpu; do
        tests+=("test_peers.Peers.test_$name")
    done
    for name in prefetches_and_preferred_locations_move_it_between_gpus prefetches_beside_other_threads \
        random_work_of_several_gpus random_work_of_several_gpus_while_they_move variables_have_one_value_on_several_gpus \
        memory_that_is_replaced_while_the_sessions_move \
        a_process_that_uses_one_of_several_gpus_moves_alone kernel_and_program_answer_each_other; do
        tests+=("test_managed.Managed.test_$name")
    done
    for name in "${tests[@]}"; do
        (cd tests && PARAGPU_TEST_DEVICE=cuda timeout "${PATIENCE:-140}" python3 -m unittest "end_to_end.$name") >"$folder/pair-$name.log" 2>&1 &
        processes+=($!)
    done
    if [ "${PARITY:-yes}" = yes ]; then
        timeout 200 python3 tests/parity/test_parity.py --gpu 1 --jobs 16 --output "$folder/parity-pair.json" || status=1
    fi
    for at in "${!tests[@]}"; do
        if wait "${processes[$at]}"; then
            echo "right: ${tests[$at]}"
        else
            status=1
            echo "WRONG: ${tests[$at]}"
            grep -vE '^20[0-9-]+T.*INFO' "$folder/pair-${tests[$at]}.log" | tail -n 25
        fi
    done
    timeout 80 python3 tests/bench/pair.py || status=1
    ;;
quick | all)
    python3 tests/bench/bench_gpu.py --quick --output "$folder/bench-gpu.json" --log "$folder/bench-gpu-daemon.log" || status=1
    ;;
esac
exit "$status"
