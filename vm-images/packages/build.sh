#!/bin/bash
# Makes the Debian packages from what is built: target/release, out/lib.
#
# usage: build.sh [OUT [VERSION]]
#   OUT      folder for the .deb files (default: out/packages); those of an
#            earlier run are removed
#   VERSION  another version than debian/changelog's
# The same programs give the same packages, byte for byte.
# Needs: build-essential debhelper dh-dkms.
set -euo pipefail
case ${1:-} in -h | --help) exec sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" ;; esac

here=$(cd "$(dirname "$0")" && pwd)
top=$(cd "$here/../.." && pwd)
release=${CARGO_TARGET_DIR:-$top/target}/release
out=${1:-$top/out/packages}
version=${2:-}
mkdir -p "$out"
out=$(cd "$out" && pwd)

for file in "$release"/{paragpu,paragpud,paragpu-worker,paragpu-qemu-device} \
	"$top"/out/lib/{libcuda.so.1,libcudart.so.{12,13},libnvidia-ml.so.1,libparagpu-redirect.so}; do
	[ -e "$file" ] || {
		echo "build.sh: $file is not there: run \`make build\` first" >&2
		exit 1
	}
done

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
source=$work/paragpu
staged=$source/staged
mkdir -p "$staged/man" "$staged"/completions/{bash,zsh,fish}
cp -r "$here/debian" "$here/files" "$source"

cp "$release"/{paragpu,paragpud,paragpu-worker,paragpu-qemu-device} \
	"$top"/out/lib/{libcuda.so.1,libcudart.so.{12,13},libnvidia-ml.so.1,libparagpu-redirect.so} "$staged"
for side in guest host; do
	cp "$top/protocol/config/$side.toml.example" "$staged/$side.toml"
done
# On by default where the package gives the users: see paragpu-host.postinst.
sed -i 's/^#users = ""$/users = "subordinate"/' "$staged/host.toml"
grep -qx 'users = "subordinate"' "$staged/host.toml"
"$staged/paragpu" man "$staged/man"
for program in paragpud paragpu-worker paragpu-qemu-device; do
	"$staged/$program" --man >"$staged/man/$program.8"
done
"$staged/paragpu" completions bash >"$staged/completions/bash/paragpu"
"$staged/paragpu" completions zsh >"$staged/completions/zsh/_paragpu"
"$staged/paragpu" completions fish >"$staged/completions/fish/paragpu.fish"

cp "$top/host-backend/daemon/paragpud.service" \
	"$source/debian/paragpu-host.paragpud.service"
cp "$top/qemu-device/paragpu-device@.service" "$staged"
# Both get the package's name where they go.
mkdir "$staged"/{hook,apparmor}
cp "$top/qemu-device/libvirt/hook" "$staged/hook/paragpu"
cp "$top/qemu-device/libvirt/apparmor" "$staged/apparmor/paragpu"

# A pool under Slurm: the guide, and the lines that it shows.
mkdir "$staged/pool"
cp -r "$top/host-backend/pool/examples" \
	"$top"/docs/{pool.md,network.md,tenancy.md,grafana.json,grafana.svg} "$staged/pool"

# The guides that messages and manual pages of both sides name.
mkdir -p "$staged/docs/results"
cp "$top"/docs/*.md "$staged/docs"
# The figures that they name.
cp "$top"/docs/results/*.md "$staged/docs/results"

# The module's sources as DKMS expects them, with the packages' version.
number=$(dpkg-parsechangelog -l "$source/debian/changelog" -S Version)
number=${version:-$number}
mkdir "$source/kernel-module"
(
	cd "$top/kernel-module"
	cp --parents Kbuild Makefile dkms.conf ./*.[ch] include/uapi/linux/paragpu.h \
		"$source/kernel-module"
)
sed -i "s/^PACKAGE_VERSION=.*/PACKAGE_VERSION=\"$number\"/" \
	"$source/kernel-module/dkms.conf"
echo "kernel-module/* usr/src/paragpu-$number" >"$source/debian/paragpu-dkms.install"

if [ -n "$version" ]; then
	{
		sed -n "1s/([^)]*)/($version)/p" "$source/debian/changelog"
		sed 1d "$source/debian/changelog"
	} >"$work/changelog"
	mv "$work/changelog" "$source/debian/changelog"
fi

cd "$source"
# Modes are the checkout's umask's, and those of programs matter.
chmod -R u=rwX,go=rX .
find . -exec touch --no-dereference -d "@$(dpkg-parsechangelog -S Timestamp)" {} +
if ! DEB_BUILD_OPTIONS=noautodbgsym dpkg-buildpackage -b -us -uc -rfakeroot \
	>"$work/log" 2>&1; then
	cat "$work/log" >&2
	exit 1
fi
rm -f "$out"/*.deb
mv "$work"/*.deb "$out"
ls "$out"/*.deb
