#!/bin/sh
# Writes src/runtimes.txt: facts about the static runtime of every release.
#
#   guest-frontend/redirect/fingerprints.sh CACHE
#
# Fetches the wheels that runtimes.pins and carriers.pins name into CACHE (50 MB
# and 1.3 GB, fetch.sh). A new release gets a line in runtimes.pins. Its wheels of 12.0
# to 12.8 have no static runtime, and are for tests.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
cache=${1:?usage: fingerprints.sh CACHE}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$here/fetch.sh" "$cache"

set --
# Libraries that contain one release, after each other in carriers.pins.
while read -r release name version _; do
	case $release in '#'*) continue ;; esac
	"$here/fetch.sh" "$cache" --carrier "$name" "$version" </dev/null
	library=$(echo "$cache/carriers/$name-$version"/*)
	case ${last-} in
	"$release") carriers=$carriers,$library ;;
	*)
		[ -z "${last-}" ] || set -- "$@" "$last=$carriers"
		carriers=$library
		;;
	esac
	last=$release
done <"$here/carriers.pins"
[ -z "${last-}" ] || set -- "$@" "$last=$carriers"

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
