#!/bin/sh
# Writes src/runtimes.txt: facts about the static runtime of every release.
#
#   guest-frontend/redirect/fingerprints.sh CACHE
#
# Fetches the wheels that runtimes.pins names into CACHE (50 MB), where their
# libraries lie afterwards: CACHE/VERSION/libcudart*. Needs python3 with pip. A
# new release gets a line in runtimes.pins. Wheels without a static runtime
# (12.0 to 12.8) are for tests.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
cache=${1:?usage: fingerprints.sh CACHE}
mkdir -p "$cache"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fetch() {
	echo "fingerprints: fetching $1 $2"
	echo "$1==$2 --hash=sha256:$3" >"$work/pin"
	python3 -m pip download --quiet --disable-pip-version-check --no-deps \
		--only-binary=:all: --platform manylinux2014_x86_64 \
		--platform manylinux1_x86_64 --require-hashes \
		--dest "$work" --requirement "$work/pin"
	mkdir "$work/tree"
	python3 -m zipfile -e "$work"/*.whl "$work/tree"
	rm -f "$work"/*.whl
	mkdir -p "$cache/$2.part"
	find "$work/tree" -name 'libcudart*' -exec cp {} "$cache/$2.part" \;
	find "$work/tree" -type d -name include -exec cp -r {} "$cache/$2.part" \;
	rm -rf "$work/tree"
	mv -T "$cache/$2.part" "$cache/$2"
}

set --
while read -r name version hash; do
	case $name in '#'*) continue ;; esac
	[ -d "$cache/$version" ] || fetch "$name" "$version" "$hash"
	archive=$cache/$version/libcudart_static.a
	[ ! -e "$archive" ] || set -- "$@" "$version=$archive"
done <"$here/runtimes.pins"

manifest=$here/../../Cargo.toml
cargo run --quiet --release --manifest-path "$manifest" -p paragpu-redirect \
	--example fingerprints -- "$@" >"$work/runtimes.txt"
mv "$work/runtimes.txt" "$here/src/runtimes.txt"
grep '^build' "$here/src/runtimes.txt"
