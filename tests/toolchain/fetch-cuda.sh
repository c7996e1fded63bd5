#!/bin/sh
# Fetch the CUDA 13.0 compiler into .cache/cuda-13.0 of this repository.
#
#   tests/toolchain/fetch-cuda.sh [DIRECTORY]
#
# Needs python3 with pip (Debian: python3-pip, or python3-venv, from which a
# throw-away environment is made). Versions and hashes: cuda-13.0.txt. The tree
# appears under its name only when it is complete; a second call finds it there
# and does nothing. Nothing else is fetched and nothing is installed.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
pins=$here/cuda-13.0.txt
tree=${1:-$here/../../.cache/cuda-13.0}

fail() {
    echo "fetch-cuda: $*" >&2
    exit 1
}

command -v python3 >/dev/null || fail "python3 is missing (Debian: apt-get install python3 python3-venv)"
[ "$(uname -m)" = x86_64 ] || fail "the pinned packages are for x86-64, this machine is $(uname -m)"

mkdir -p "$(dirname "$tree")"
tree=$(cd "$(dirname "$tree")" && pwd)/$(basename "$tree")
stamp=$(sha256sum <"$pins" | cut -d' ' -f1)

is_complete() {
    [ -f "$tree/.complete" ] && [ "$(cat "$tree/.complete")" = "$stamp" ]
}

if is_complete; then
    echo "fetch-cuda: $tree is complete"
    exit 0
fi

# One fetch at a time; a process that waited looks again. What a killed fetch left
# behind goes here too.
exec 9>"$tree.lock"
flock 9
if is_complete; then
    echo "fetch-cuda: $tree is complete"
    exit 0
fi

rm -rf "$tree".??????
staging=$(mktemp -d "$tree.XXXXXX")
trap 'rm -rf "$staging"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

python=python3
if ! "$python" -m pip --version >/dev/null 2>&1; then
    echo "fetch-cuda: no pip here, making a throw-away environment for it"
    python3 -m venv "$staging/venv" >"$staging/venv.log" 2>&1 ||
        fail "neither pip nor venv works (Debian: apt-get install python3-venv)"
    python=$staging/venv/bin/python3
fi

echo "fetch-cuda: fetching the CUDA 13.0 compiler (104 MB)"
"$python" -m pip download --disable-pip-version-check --no-deps --only-binary=:all: \
    --require-hashes --requirement "$pins" --dest "$staging/wheels" ||
    fail "the download failed; nothing was changed"

echo "fetch-cuda: unpacking"
python3 "$here/unpack_wheels.py" "$staging/wheels" "$staging/tree"
# nvcc.profile looks for lib64, and -cudart shared for a name without a version.
ln -s lib "$staging/tree/lib64"
ln -s libcudart.so.13 "$staging/tree/lib/libcudart.so"

"$staging/tree/bin/nvcc" --version | grep -q 'V13\.0\.88' || fail "the unpacked nvcc does not run"
echo "$stamp" >"$staging/tree/.complete"
rm -rf "$tree"
mv -T "$staging/tree" "$tree"
echo "fetch-cuda: ready: $tree/bin/nvcc"
