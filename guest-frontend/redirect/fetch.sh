#!/bin/sh
# Fetches NVIDIA's runtimes from their wheels, each held to its hash.
#
#   guest-frontend/redirect/fetch.sh CACHE [VERSION …]
#
# Without a version, all that runtimes.pins names. CACHE/VERSION gets the
# libraries libcudart* and the folder include. Needs python3 with pip.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
cache=${1:?usage: fetch.sh CACHE [VERSION …]}
shift
mkdir -p "$cache"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fetch() {
	echo "fetching $1 $2"
	echo "$1==$2 --hash=sha256:$3" >"$work/pin"
	python3 -m pip download --quiet --disable-pip-version-check --no-deps \
		--only-binary=:all: --platform manylinux2014_x86_64 \
		--platform manylinux1_x86_64 --require-hashes \
		--dest "$work" --requirement "$work/pin"
	mkdir "$work/tree"
	python3 -m zipfile -e "$work"/*.whl "$work/tree"
	rm -f "$work"/*.whl
	rm -rf "$cache/$2.part"
	mkdir -p "$cache/$2.part"
	find "$work/tree" -name 'libcudart*' -exec cp {} "$cache/$2.part" \;
	find "$work/tree" -type d -name include -exec cp -r {} "$cache/$2.part" \;
	rm -rf "$work/tree"
	mv -T "$cache/$2.part" "$cache/$2"
}

while read -r name version hash; do
	case $name in '#'*) continue ;; esac
	if [ $# -gt 0 ]; then
		case " $* " in *" $version "*) ;; *) continue ;; esac
	fi
	[ -d "$cache/$version" ] || fetch "$name" "$version" "$hash"
done <"$here/runtimes.pins"
