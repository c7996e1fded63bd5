#!/usr/bin/env bash
# Builds llama.cpp's programs with the CUDA compiler and NVIDIA's libraries in .cache:
#
#   tests/frameworks/build-llama.sh FOLDER
#
# The source comes with the package of llama-cpp-python, held to its hash. The programs
# carry NVIDIA's static runtime and PTX alone, so that the software GPU runs them too.
# Needs cmake and ninja; takes half an hour on two cores. A second call finds the
# programs and does nothing. A machine without a network unpacks the package in FOLDER
# before and names an installed toolkit:
#
#   PARAGPU_TEST_TOOLKIT    CUDA toolkit with cuBLAS, instead of what .cache holds
#   ARCHITECTURES           CMake's CUDA architectures, default 80-virtual
set -euo pipefail
cd "$(dirname "$0")/../.."
mkdir -p "$1"
folder=$(cd "$1" && pwd)
programs=(llama-simple llama-bench test-backend-ops)
if [ -e "$folder/.complete" ]; then
    exit 0
fi
version=0.3.36
hash=sha256:832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e
source=$folder/llama_cpp_python-$version/vendor/llama.cpp
if [ ! -e "$source/CMakeLists.txt" ]; then
    printf '%s --hash=%s\n' "llama-cpp-python==$version" "$hash" >"$folder/package.txt"
    python3 -m pip download --quiet --no-deps --no-binary llama-cpp-python \
        --require-hashes --requirement "$folder/package.txt" --dest "$folder"
    tar -C "$folder" -xzf "$folder/llama_cpp_python-$version.tar.gz"
fi

toolkit=${PARAGPU_TEST_TOOLKIT:-}
if [ -z "$toolkit" ]; then
    # One toolkit, as CMake looks for it.
    toolkit=$folder/toolkit
    rm -rf "$toolkit"
    mkdir -p "$toolkit"/{bin,include,lib64/stubs}
    ln -s "$PWD"/.cache/libraries/include/* "$toolkit/include/"
    ln -sf "$PWD"/.cache/cuda-13.0/include/* "$toolkit/include/"
    ln -s "$PWD"/.cache/cuda-13.0/bin/* "$toolkit/bin/"
    ln -s "$PWD/.cache/cuda-13.0/nvvm" "$toolkit/nvvm"
    ln -s "$PWD"/.cache/libraries/lib/* "$toolkit/lib64/"
    ln -sf "$PWD"/.cache/cuda-13.0/lib/* "$toolkit/lib64/"
    ln -s libcublas.so.13 "$toolkit/lib64/libcublas.so"
    ln -s libcublasLt.so.13 "$toolkit/lib64/libcublasLt.so"
    ln -s "$PWD/out/lib/libcuda.so.1" "$toolkit/lib64/stubs/libcuda.so"
fi

cmake -G Ninja -S "$source" -B "$folder/build" -DCMAKE_BUILD_TYPE=Release \
    -DCMAKE_CUDA_COMPILER="$toolkit/bin/nvcc" -DCUDAToolkit_ROOT="$toolkit" \
    -DCMAKE_CUDA_ARCHITECTURES="${ARCHITECTURES:-80-virtual}" -DCMAKE_CUDA_RUNTIME_LIBRARY=Static \
    -DGGML_CUDA=ON -DGGML_CUDA_FA=OFF -DGGML_NATIVE=OFF -DGGML_OPENMP=OFF -DBUILD_SHARED_LIBS=OFF \
    -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_SERVER=OFF -DLLAMA_BUILD_TESTS=ON >"$folder/cmake.log"
ninja -C "$folder/build" "${programs[@]}"
touch "$folder/.complete"
