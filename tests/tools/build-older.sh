#!/bin/bash
# Builds paragpud and its worker of another revision, for tests that run them beside
# those of this tree.
#
# usage: build-older.sh REVISION FOLDER
set -euo pipefail
case ${1:-} in -h | --help) exec sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" ;; esac

folder=$2
revision=$(git rev-parse --verify --quiet "$1^{commit}") || {
	echo "build-older.sh: $1 is no revision of this repository" >&2
	exit 1
}
if [ "$(cat "$folder/revision" 2>/dev/null)" = "$revision" ]; then
	exit 0
fi
echo "== building paragpud of $1"
rm -rf "$folder/revision" "$folder/source"
mkdir -p "$folder/source"
git archive "$revision" | tar -x -C "$folder/source"
# Without debug information, which is most of its size.
CARGO_PROFILE_RELEASE_DEBUG=0 cargo build --release --locked --manifest-path "$folder/source/Cargo.toml" \
	--target-dir "$folder/target" -p paragpu-daemon -p paragpu-worker
cp "$folder"/target/release/{paragpud,paragpu-worker} "$folder"
echo "$revision" >"$folder/revision"
