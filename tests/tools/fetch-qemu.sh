#!/bin/bash
# Fetches a QEMU with vfio-user-pci (10.1 or later), from Debian 13's backports,
# into a separate root in .cache, without changes to this machine.
# Does nothing, and needs no network, where it is there. About 170 MB.
#
# usage: fetch-qemu.sh [CACHE]   CACHE: folder for the root (default: .cache)
# Prints the path of a program that runs it.
# Needs: mmdebstrap, root.
set -euo pipefail
case ${1:-} in -h | --help) exec sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" ;; esac

here=$(cd "$(dirname "$0")" && pwd)
cache=${1:-$here/../../.cache}
mkdir -p "$cache"
cache=$(cd "$cache" && pwd)
root=$cache/qemu-root
program=$cache/qemu-vfio-user

# One at a time; a process that waited finds it there.
exec 9>"$cache/qemu.lock"
flock 9

if [ ! -e "$root/.complete" ]; then
	echo "== fetching a QEMU with vfio-user-pci from Debian 13's backports into .cache" >&2
	rm -rf --one-file-system "$root"
	# Unpacked only: it runs where it lies, and nothing in it is configured.
	mmdebstrap --quiet --variant=extract --aptopt='APT::Default-Release "trixie-backports"' \
		--include=qemu-system-x86,seabios \
		trixie "$root" \
		'deb http://deb.debian.org/debian trixie main' \
		'deb http://deb.debian.org/debian trixie-backports main' >&2
	touch "$root/.complete"
fi

# With its own loader and libraries: this machine's may be older.
libraries=$root/usr/lib/x86_64-linux-gnu
cat >"$program.part" <<END
#!/bin/sh
export QEMU_MODULE_DIR='$libraries/qemu'
exec '$root/usr/lib64/ld-linux-x86-64.so.2' --library-path '$libraries' \\
	'$root/usr/bin/qemu-system-x86_64' -L '$root/usr/share/qemu' -L '$root/usr/share/seabios' "\$@"
END
chmod +x "$program.part"
mv "$program.part" "$program"
"$program" -device vfio-user-pci,help >"$cache/qemu.log" 2>&1 || {
	cat "$cache/qemu.log" >&2
	echo "fetch-qemu: $("$program" --version | head -n 1) has no vfio-user-pci" >&2
	exit 1
}
echo "$program"
