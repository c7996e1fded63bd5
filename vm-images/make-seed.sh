#!/bin/bash
# Makes the disk from which cloud-init in a cloud image takes its data (NoCloud:
# a FAT file system labelled CIDATA). Attach it beside the image's own disk.
#
# usage: make-seed.sh --output FILE [option]...
#   --output FILE       the disk, raw
#   --user-data FILE    default: cloud/user-data, which installs paragpu
#   --vendor-data FILE  the same from the cloud operator
#   --packages DIR      .deb files to bring along, as a repository of apt's
#   --name NAME         of the machine (default: paragpu)
#   --file SRC=DEST     one more file or folder; may be repeated
# The same files give the same disk. Needs: mtools dosfstools dpkg-dev.
set -euo pipefail
case ${1:-} in -h | --help) exec sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" ;; esac

here=$(cd "$(dirname "$0")" && pwd)

fail() {
	echo "make-seed: $*" >&2
	exit 1
}

output='' user_data=$here/cloud/user-data vendor_data='' packages='' name=paragpu files=()
while [ $# -gt 0 ]; do
	[ $# -ge 2 ] || fail "$1 needs a value"
	case $1 in
	--output) output=$2 ;;
	--user-data) user_data=$2 ;;
	--vendor-data) vendor_data=$2 ;;
	--packages) packages=$2 ;;
	--name) name=$2 ;;
	--file) files+=("$2") ;;
	*) fail "unknown option $1" ;;
	esac
	shift 2
done
[ -n "$output" ] || fail "--output is missing"
[ -e "$user_data" ] || fail "--user-data: there is no '$user_data'"
[ -z "$packages" ] || compgen -G "$packages/*.deb" >/dev/null ||
	fail "--packages: there is no .deb file in '$packages'"

SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(dpkg-parsechangelog -l "$here/packages/debian/changelog" -S Timestamp)}
export SOURCE_DATE_EPOCH
mkdir -p "$(dirname "$output")"
# Absolute: below, the tree is the working directory.
work=$(mktemp -d "$(cd "$(dirname "$output")" && pwd)/.seed.XXXXXX")
trap 'rm -rf "$work"' EXIT
tree=$work/tree
mkdir "$tree"
cp "$user_data" "$tree/user-data"
[ -z "$vendor_data" ] || cp "$vendor_data" "$tree/vendor-data"
printf 'instance-id: %s\nlocal-hostname: %s\n' "$name" "$name" >"$tree/meta-data"
if [ -n "$packages" ]; then
	mkdir "$tree/packages"
	cp "$packages"/*.deb "$tree/packages"
	(cd "$tree/packages" && dpkg-scanpackages --multiversion . >Packages 2>"$work/scan.log") || {
		cat "$work/scan.log" >&2
		exit 1
	}
fi
for file in "${files[@]}"; do
	[ -e "${file%%=*}" ] || fail "--file: there is no '${file%%=*}'"
	mkdir -p "$(dirname "$tree/${file#*=}")"
	cp -rL "${file%%=*}" "$tree/${file#*=}"
done
find "$tree" -exec touch -d "@$SOURCE_DATE_EPOCH" {} +

# With room for the file system itself; FAT has no smaller clusters than files.
megabytes=$(($(du -sm --apparent-size "$tree" | cut -f1) * 11 / 10 + 36))
truncate -s "${megabytes}M" "$work/disk"
mformat -i "$work/disk" -F -v CIDATA -N "$(printf %08x "$SOURCE_DATE_EPOCH")" ::
(cd "$tree" && find . -mindepth 1 -maxdepth 1 -printf '%f\n' | LC_ALL=C sort |
	xargs -d '\n' -I{} mcopy -i "$work/disk" -s -m {} ::)
mv "$work/disk" "$output"
echo "$output"
