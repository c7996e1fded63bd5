#!/bin/sh
# Fetches NVIDIA's runtimes from their wheels, each held to its hash.
#
#   guest-frontend/redirect/fetch.sh CACHE [VERSION …]
#   guest-frontend/redirect/fetch.sh CACHE --carrier NAME VERSION
#
# Without a version, all that runtimes.pins names. CACHE/VERSION gets the
# libraries libcudart* and the folder include. --carrier fetches a wheel that
# carriers.pins names: CACHE/carriers/NAME-VERSION gets the library that
# contains a runtime. Needs python3 with pip.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
cache=${1:?usage: fetch.sh CACHE [VERSION …]}
shift
mkdir -p "$cache"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Unpacks a wheel of a name, a version and a hash to $work/tree.
unpack() {
	echo "fetching $1 $2"
	echo "$1==$2 --hash=sha256:$3" >"$work/pin"
	python3 -m pip download --quiet --disable-pip-version-check --no-deps \
		--only-binary=:all: --platform manylinux2014_x86_64 \
		--platform manylinux1_x86_64 --platform manylinux_2_27_x86_64 \
		--platform manylinux_2_34_x86_64 \
		--python-version 3.11 --require-hashes \
		--dest "$work" --requirement "$work/pin"
	mkdir "$work/tree"
	python3 -m zipfile -e "$work"/*.whl "$work/tree"
	rm -f "$work"/*.whl
}

fetch() {
	unpack "$1" "$2" "$3"
	rm -rf "$cache/$2.part"
	mkdir -p "$cache/$2.part"
	find "$work/tree" -name 'libcudart*' -exec cp {} "$cache/$2.part" \;
	find "$work/tree" -type d -name include -exec cp -r {} "$cache/$2.part" \;
	rm -rf "$work/tree"
	mv -T "$cache/$2.part" "$cache/$2"
}

if [ "${1-}" = --carrier ]; then
	to=$cache/carriers/$2-$3
	[ ! -d "$to" ] || exit 0
	read -r hash library <<-END
		$(awk -v name="$2" -v version="$3" '$2 == name && $3 == version { print $4, $5 }' "$here/carriers.pins")
	END
	unpack "$2" "$3" "$hash"
	rm -rf "$to.part"
	mkdir -p "$to.part"
	find "$work/tree" -name "$library" -exec cp {} "$to.part" \;
	mv -T "$to.part" "$to"
	exit 0
fi

while read -r name version hash; do
	case $name in '#'*) continue ;; esac
	if [ $# -gt 0 ]; then
		case " $* " in *" $version "*) ;; *) continue ;; esac
	fi
	[ -d "$cache/$version" ] || fetch "$name" "$version" "$hash"
done <"$here/runtimes.pins"
