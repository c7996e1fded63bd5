#!/bin/sh
# Fetches NVIDIA's wheels and unpacks their contents into one tree.
#
#   tests/toolchain/fetch-wheels.sh PINS TREE WHAT [COMMAND…]
#
# PINS names versions and hashes as pip reads them; WHAT tells the reader what is
# fetched. COMMAND finishes the tree: it runs with the tree's place as its last
# argument. Needs python3 with pip (Debian: python3-pip, or python3-venv, from
# which a throw-away environment is made). The tree appears under its name only
# when it is complete; a second call finds it there and does nothing. Nothing
# else is fetched and nothing is installed.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
pins=$1
tree=$2
what=$3
shift 3

fail() {
    echo "fetch-wheels: $*" >&2
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
    echo "fetch-wheels: $tree is complete"
    exit 0
fi

# One fetch at a time; a process that waited looks again. What a killed fetch left
# behind goes here too.
exec 9>"$tree.lock"
flock 9
if is_complete; then
    echo "fetch-wheels: $tree is complete"
    exit 0
fi

rm -rf "$tree".??????
staging=$(mktemp -d "$tree.XXXXXX")
trap 'rm -rf "$staging"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

python=python3
if ! "$python" -m pip --version >/dev/null 2>&1; then
    echo "fetch-wheels: no pip here, making a throw-away environment for it"
    python3 -m venv "$staging/venv" >"$staging/venv.log" 2>&1 ||
        fail "neither pip nor venv works (Debian: apt-get install python3-venv)"
    python=$staging/venv/bin/python3
fi

echo "fetch-wheels: fetching $what"
# /tmp may be too small for large wheels.
mkdir "$staging/tmp"
TMPDIR=$staging/tmp "$python" -m pip download --disable-pip-version-check --no-deps --only-binary=:all: \
    --no-cache-dir --require-hashes --requirement "$pins" --dest "$staging/wheels" ||
    fail "the download failed; nothing was changed"

echo "fetch-wheels: unpacking"
python3 "$here/unpack_wheels.py" "$staging/wheels" "$staging/tree"
if [ $# -gt 0 ]; then
    "$@" "$staging/tree" || fail "the unpacked tree is not usable"
fi
echo "$stamp" >"$staging/tree/.complete"
rm -rf "$tree"
mv -T "$staging/tree" "$tree"
echo "fetch-wheels: ready: $tree"
