#!/usr/bin/env bash
# Gathers what the GPU tests and benchmarks run, stripped, into one folder, so that
# a machine with a GPU but without compilers or network can run them:
#
#   tests/bench/kit.sh [FOLDER]      default: out/gpu-kit
#
# Copy the repository with that folder to the machine; gpu.sh there finds it.
set -euo pipefail
cd "$(dirname "$0")/../.."
kit=${1:-out/gpu-kit}
release=target/release

rm -rf "$kit"
mkdir -p "$kit/bin" "$kit/lib" "$kit/programs" "$kit/native"
for name in paragpud paragpu-worker paragpu paragpu-bench paragpu-qemu-device; do
    strip -o "$kit/bin/$name" "$release/$name"
done
for name in libcuda.so.1 libcudart.so.13; do
    strip --strip-unneeded -o "$kit/lib/$name" "out/lib/$name"
done
for program in out/programs/*; do
    if [ -f "$program" ] && [ -x "$program" ]; then
        strip -o "$kit/programs/$(basename "$program")" "$program"
    fi
done
strip -o "$kit/overheads" out/bench/overheads
# NVIDIA's own runtime, which the remote one is compared with. Never commit it.
cp -L .cache/cuda-13.0/lib/libcudart.so.13 "$kit/native/"

# The newest binary of the device's conformance suite.
suite=$(cargo test --release -p paragpu-device-cuda --test conformance --no-run --message-format=json |
    python3 -c 'import json, sys
for line in sys.stdin:
    message = json.loads(line)
    if message.get("executable") and message["target"]["name"] == "conformance":
        print(message["executable"])')
strip -o "$kit/conformance" "$suite"
du -sh "$kit"
