#!/bin/sh
# Fetch the CUDA 13.0 compiler into .cache/cuda-13.0 of this repository.
#
#   tests/toolchain/fetch-cuda.sh [DIRECTORY]
#
# Versions and hashes: cuda-13.0.txt; fetch-wheels.sh says how.
set -eu

here=$(cd "$(dirname "$0")" && pwd)

if [ "${1:-}" = --finish ]; then
    # nvcc.profile looks for lib64, and -cudart shared for a name without a version.
    ln -s lib "$2/lib64"
    ln -s libcudart.so.13 "$2/lib/libcudart.so"
    "$2/bin/nvcc" --version | grep -q 'V13\.0\.88'
    exit
fi

exec "$here/fetch-wheels.sh" "$here/cuda-13.0.txt" "${1:-$here/../../.cache/cuda-13.0}" \
    "the CUDA 13.0 compiler (104 MB)" "$here/fetch-cuda.sh" --finish
