#!/bin/bash
# Makes the demo VM's initramfs: busybox, the modules of a Debian cloud kernel
# that a VM's devices need, the paragpu module, and what is given.
#
# usage: make-initramfs.sh --kernel DIR --output FILE [option]...
#   --kernel DIR       what fetch-kernel.sh made: CACHE/kernel/RELEASE
#   --output FILE      the initramfs (cpio, not compressed)
#   --module FILE      paragpu.ko for that kernel
#   --programs DIR     its executables go to /opt/paragpu/programs
#   --libraries DIR    its shared libraries go where ld.so looks first
#   --config FILE      goes to /etc/paragpu/guest.toml
#   --file SRC=DEST    any file; may be repeated
#   --drivers LIST     instead of all modules that run-vm.sh's devices need
# Shared libraries that programs and libraries need come from this machine.
# Needs: busybox-static cpio kmod xz-utils.
set -euo pipefail
case ${1:-} in -h | --help) exec sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" ;; esac
# Where Debian keeps depmod and ldconfig, which users who are not root lack.
PATH=$PATH:/usr/sbin:/sbin

here=$(cd "$(dirname "$0")" && pwd)
# Modules for the devices that run-vm.sh can be asked for, and vsock's loopback
# for tests.
modules=(virtio_pci virtio_net vmw_vsock_virtio_transport vsock_loopback)

fail() {
	echo "make-initramfs: $*" >&2
	exit 1
}

kernel='' output='' module='' config=''
programs=() libraries=() files=()
while [ $# -gt 0 ]; do
	[ $# -ge 2 ] || fail "$1 needs a value"
	case $1 in
	--kernel) kernel=$2 ;;
	--output) output=$2 ;;
	--module) module=$2 ;;
	--programs) programs+=("$2") ;;
	--libraries) libraries+=("$2") ;;
	--config) config=$2 ;;
	--file) files+=("$2") ;;
	--drivers) read -ra modules <<<"$2" ;;
	*) fail "unknown option $1" ;;
	esac
	shift 2
done
[ -e "$kernel/vmlinuz" ] || fail "--kernel: there is no vmlinuz in '$kernel'"
[ -n "$output" ] || fail "--output is missing"
release=$(basename "$kernel")

root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
system=$root/usr/lib/x86_64-linux-gnu
mkdir -p "$root"/{dev,proc,sys,tmp,run,root,paragpu,etc/paragpu} \
	"$root"/usr/{bin,sbin,lib,lib64} "$root/opt/paragpu/programs" "$system"
ln -s usr/bin "$root/bin"
ln -s usr/sbin "$root/sbin"
ln -s usr/lib "$root/lib"
ln -s usr/lib64 "$root/lib64"
cp /bin/busybox "$root/usr/bin/busybox"
cp "$here/init" "$root/init"
echo 'exit 0' >"$root/paragpu/commands"

# Modules, not compressed, so that busybox can load those of any release.
target=$root/usr/lib/modules/$release
mkdir -p "$target"
for name in "${modules[@]}"; do
	modprobe -d "$kernel" -S "$release" --show-depends "$name"
done | awk '$1 == "insmod" { print $2 }' | sort -u | while read -r file; do
	case $file in
	*.xz) xz -dc "$file" >"$target/$(basename "${file%.xz}")" ;;
	*.zst) zstd -qdc "$file" >"$target/$(basename "${file%.zst}")" ;;
	*) cp "$file" "$target" ;;
	esac
done
if [ -n "$module" ]; then
	cp "$module" "$target/paragpu.ko"
fi
cp "$kernel/lib/modules/$release"/modules.{order,builtin,builtin.modinfo} "$target"
depmod -b "$root" "$release"

# What programs and libraries need and is not given, with the loader.
add_needed() {
	# A static program has no needs, which ldd calls a failure.
	{ ldd "$1" 2>/dev/null || true; } | awk '/=> \// { print $3 } $1 ~ /^\// { print $1 }' |
		while read -r needed; do
			case $needed in
			*/ld-linux*) place=$root/usr/lib64 ;;
			*) place=$system ;;
			esac
			[ -e "$place/$(basename "$needed")" ] ||
				cp -L "$needed" "$place/"
		done
}

for folder in "${libraries[@]}"; do
	find "$folder" -maxdepth 1 \( -name '*.so' -o -name '*.so.*' \) \
		-exec cp -P {} "$system/" \;
done
# Programs that carry NVIDIA's runtime use ours.
if [ -e "$system/libparagpu-redirect.so" ]; then
	echo /usr/lib/x86_64-linux-gnu/libparagpu-redirect.so >"$root/etc/ld.so.preload"
fi
for folder in "${programs[@]}"; do
	find "$folder" -maxdepth 1 -type f -perm -u+x \
		-exec cp {} "$root/opt/paragpu/programs/" \;
done
for file in "${files[@]}"; do
	source=${file%%=*} place=$root/${file#*=}
	[ -e "$source" ] || fail "--file: there is no '$source'"
	mkdir -p "$(dirname "$place")"
	cp -rL "$source" "$place"
done
if [ -n "$config" ]; then
	cp "$config" "$root/etc/paragpu/guest.toml"
fi
find "$root/opt" "$root/usr/bin" "$root/usr/sbin" "$system" -type f \
	\( -perm -u+x -o -name '*.so*' \) | while read -r file; do
	add_needed "$file"
done
ldconfig -r "$root" 2>/dev/null || fail "ldconfig failed"

mkdir -p "$(dirname "$output")"
(cd "$root" && find . -print0 | LC_ALL=C sort -z |
	cpio --quiet --null -o -H newc -R 0:0 --reproducible) >"$output.part"
mv "$output.part" "$output"
