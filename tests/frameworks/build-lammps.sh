#!/usr/bin/env bash
# Builds LAMMPS with its GPU package for CUDA, with the compiler in .cache:
#
#   tests/frameworks/build-lammps.sh FOLDER
#
# The source is Debian's source package, held to its hash. The program carries
# NVIDIA's static runtime and PTX alone, so that the software GPU runs it too; it
# knows one process (no MPI). Needs cmake, ninja and dpkg-dev; takes a quarter of an hour on
# two cores. A second call finds the program and does nothing. A machine without a
# network unpacks the source in FOLDER/source before and names an installed toolkit
# (PARAGPU_TEST_TOOLKIT).
set -euo pipefail
cd "$(dirname "$0")/../.."
mkdir -p "$1"
folder=$(cd "$1" && pwd)
if [ -e "$folder/.complete" ]; then
    exit 0
fi
version=20220106.git7586adbb6a+ds1-2
hash=65146c615ad24d8b8bc64f4e05e86226a7f1fdb45c0b5ea9416562b9f3863082
if [ ! -e "$folder/source/cmake/CMakeLists.txt" ]; then
    # Source packages of this release, whatever the machine's apt knows of.
    apt=$folder/apt
    mkdir -p "$apt"/{state/lists,cache}
    # shellcheck disable=SC2016 # apt's variable
    mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Origin: Debian' 'Label: Debian' 'Component: main' | sort -u | head -n 1)
    if [ -z "$mirror" ]; then
        echo "build-lammps: apt knows no mirror of Debian: 'apt-get update' as root may help" >&2
        exit 1
    fi
    echo "deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror bookworm main" >"$apt/sources.list"
    options=(-o "Dir::State=$apt/state" -o "Dir::Cache=$apt/cache" -o "Dir::Etc::sourcelist=$apt/sources.list"
        -o Dir::Etc::sourceparts=/dev/null -o APT::Sandbox::User=root -qq)
    (
        cd "$folder"
        apt-get "${options[@]}" update
        apt-get "${options[@]}" source --download-only "lammps=$version"
    )
    package=$folder/lammps_$version
    archive=${package%-*}.orig.tar.xz
    echo "$hash  $archive" | sha256sum --check --quiet
    rm -rf "$folder/source" "$folder/build"
    dpkg-source --no-check --extract "$package.dsc" "$folder/source" >"$folder/source.log"
fi

cuda=${PARAGPU_TEST_TOOLKIT:-$PWD/.cache/cuda-13.0}
# LAMMPS takes PTX of its GPU's major version alone. The old neighbour lists are what
# its host code builds with CUDA 12 and later; its kernels are told so here.
cmake -G Ninja -S "$folder/source/cmake" -B "$folder/build" -DCMAKE_BUILD_TYPE=Release \
    -DCMAKE_CXX_FLAGS="-include $PWD/tests/frameworks/lammps_cuda.h -I$cuda/include" \
    -DCMAKE_EXE_LINKER_FLAGS="-static-libstdc++ -static-libgcc" \
    -DPKG_GPU=ON -DGPU_API=cuda -DGPU_PREC=mixed -DGPU_ARCH=compute_90 -DPKG_MANYBODY=ON \
    -DCUDA_NVCC_FLAGS=-DLAL_USE_OLD_NEIGHBOR \
    -DBUILD_MPI=OFF -DBUILD_OMP=OFF -DBUILD_SHARED_LIBS=OFF -DWITH_GZIP=OFF -DWITH_JPEG=OFF -DWITH_PNG=OFF -DWITH_FFMPEG=OFF \
    -DCUDA_TOOLKIT_ROOT_DIR="$cuda" -DCMAKE_LIBRARY_PATH="$PWD/out/lib;$cuda/lib64/stubs" -DCMAKE_SKIP_RPATH=ON -DBIN2C="$cuda/bin/bin2c" \
    >"$folder/cmake.log"
ninja -C "$folder/build" lmp
mkdir -p "$folder/bin"
strip -o "$folder/bin/lmp" "$folder/build/lmp"
cp "$folder"/source/bench/{in.lj,in.eam,Cu_u3.eam} "$folder/bin/"
touch "$folder/.complete"
