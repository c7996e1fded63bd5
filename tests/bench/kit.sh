#!/usr/bin/env bash
# Collects the stripped programs of the GPU tests and benchmarks in one folder, so that
# a machine with a GPU but without compilers or network can run them.
#
# usage: kit.sh [--vm] [FOLDER]   (default: out/gpu-kit)
#
# --vm adds vm.tar.xz: a QEMU with the libraries and firmware that it needs, a
# kernel and an initramfs, for `gpu.sh vm` and `gpu.sh vm-frameworks`. The kernel
# is not the demo VM's, which cannot share files. LAMMPS comes along where `make
# lammps` built it.
#
# Copy the repository with that folder to the machine; gpu.sh there finds it.
set -euo pipefail
case ${1:-} in -h | --help) exec sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" ;; esac
cd "$(dirname "$0")/../.."
vm=false
if [ "${1:-}" = --vm ]; then
    vm=true
    shift
fi
kit=${1:-out/gpu-kit}
case $kit in -*) echo "kit.sh: there is no option $kit: see kit.sh --help" >&2 && exit 1 ;; esac
release=target/release

# An earlier kit is replaced, and no other folder.
if [ -e "$kit" ] && [ ! -d "$kit/native" ] && ! rmdir "$kit" 2>/dev/null; then
    echo "kit.sh: $kit is not empty, and no kit" >&2
    exit 1
fi
rm -rf "$kit"
mkdir -p "$kit/bin" "$kit/lib" "$kit/programs" "$kit/native"
for name in paragpud paragpu-worker paragpu paragpu-bench paragpu-qemu-device; do
    strip -o "$kit/bin/$name" "$release/$name"
done
for name in libcuda.so.1 libcudart.so.12 libcudart.so.13 libnvidia-ml.so.1; do
    strip --strip-unneeded -o "$kit/lib/$name" "out/lib/$name"
done
# Its build strips unneeded symbols itself.
cp -L out/lib/libparagpu-redirect.so "$kit/lib/"
for program in out/programs/*; do
    if [ -f "$program" ] && [ -x "$program" ]; then
        strip -o "$kit/programs/$(basename "$program")" "$program"
    fi
done
strip -o "$kit/overheads" out/bench/overheads
# NVIDIA's own runtime, which the remote one is compared with. Never commit it.
cp -L .cache/cuda-13.0/lib/libcudart.so.13 "$kit/native/"

lammps=${PARAGPU_TEST_LAMMPS:-.cache/lammps/bin}
if [ -e "$lammps/lmp" ]; then
    mkdir -p "$kit/lammps"
    cp -L "$lammps"/{lmp,in.lj,in.eam,Cu_u3.eam} "$kit/lammps/"
fi

# The newest binary of the device's conformance suite.
suite=$(cargo test --release -p paragpu-device-cuda --test conformance --no-run --message-format=json |
    python3 -c 'import json, sys
for line in sys.stdin:
    message = json.loads(line)
    if message.get("executable") and message["target"]["name"] == "conformance":
        print(message["executable"])')
strip -o "$kit/conformance" "$suite"

if $vm; then
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    mkdir -p "$work/vm/bin" "$work/vm/lib" "$work/vm/share" "$work/vm/kernel"
    kernel=$(PARAGPU_TEST_BINARIES=$PWD/$kit/bin PARAGPU_TEST_LIBRARIES=$PWD/$kit/lib PARAGPU_TEST_PROGRAMS=$PWD/$kit/programs \
        PYTHONPATH=tests python3 -c 'import sys
from harness import vm
print(vm.build_image(sys.argv[1], **vm.SHARING))' "$work/vm/initramfs.cpio")
    cp -L "$kernel/vmlinuz" "$work/vm/kernel/"
    qemu=$(command -v qemu-system-x86_64)
    # They run with the loader and libraries of this machine.
    for program in "$qemu" "$(command -v cpio)"; do
        cp -L "$program" "$work/vm/lib/"
        ldd "$program" | awk '$3 ~ "^/" {print $3} $1 ~ "^/" {print $1}' | xargs cp -Lu -t "$work/vm/lib"
        name=$(basename "$program")
        cat >"$work/vm/bin/$name" <<'END'
#!/bin/sh
here=$(dirname "$0")/..
export QEMU_MODULE_DIR="$here/lib"
case $0 in *qemu*) set -- -L "$here/share" "$@" ;; esac
exec "$here/lib/ld-linux-x86-64.so.2" --library-path "$here/lib" "$here/lib/$(basename "$0")" "$@"
END
        chmod +x "$work/vm/bin/$name"
    done
    # The accelerator is a module of QEMU's.
    find /usr/lib/x86_64-linux-gnu/qemu -name 'accel-tcg-x86_64.so' -exec cp -t "$work/vm/lib" {} +
    for file in bios-256k.bin kvmvapic.bin linuxboot.bin linuxboot_dma.bin; do
        cp -L "$(find /usr/share/qemu /usr/share/seabios -name "$file" | head -n 1)" "$work/vm/share/"
    done
    tar -C "$work" -c vm | xz -T0 -6 >"$kit/vm.tar.xz"
fi
du -sh "$kit"
