#!/bin/sh
# Writes src/runtimes.txt: facts about the static runtime of every release.
#
#   guest-frontend/redirect/fingerprints.sh CACHE
#
# Fetches the wheels that runtimes.pins names into CACHE (50 MB, fetch.sh). A new
# release gets a line in runtimes.pins. Wheels without a static runtime (12.0 to
# 12.8) are for tests.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
cache=${1:?usage: fingerprints.sh CACHE}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$here/fetch.sh" "$cache"

set --
while read -r name version _; do
	case $name in '#'*) continue ;; esac
	archive=$cache/$version/libcudart_static.a
	[ ! -e "$archive" ] || set -- "$@" "$version=$archive"
done <"$here/runtimes.pins"

manifest=$here/../../Cargo.toml
cargo run --quiet --release --manifest-path "$manifest" -p paragpu-redirect \
	--example fingerprints -- "$@" >"$work/runtimes.txt"
mv "$work/runtimes.txt" "$here/src/runtimes.txt"
grep '^build' "$here/src/runtimes.txt"
