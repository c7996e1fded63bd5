#!/bin/sh
# Links one of the guest libraries from its Rust archive.
#
#   guest-frontend/link/link.sh LIBRARY OUTDIR
#
# LIBRARY is libcuda.so.1, libcudart.so.12, libcudart.so.13, libnvidia-ml.so.1
# or libparagpu-redirect.so. Creates OUTDIR/lib/LIBRARY, and the name without
# version for the linker. rustc
# cannot link these itself: its own version script hides everything that has a
# symbol version. Environment: PROFILE, the cargo profile (release);
# CARGO_TARGET_DIR; CC. Run `cargo build --release -p paragpu-cudart` (or -cuda,
# -nvml) first, or set BUILD=1 to have it run here. The redirector is always built
# here, with a separate profile, because it contains no standard library.
set -eu

usage() {
	echo "usage: link.sh LIBRARY OUTDIR" >&2
	exit 2
}

[ $# -eq 2 ] || usage
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
soname=$1
out=$2/lib
profile=${PROFILE:-release}
folder=$profile
[ "$profile" = dev ] && folder=debug
target=${CARGO_TARGET_DIR:-$root/target}/$folder

case $soname in
libcudart.so.13)
	plain=libcudart.so crate=cudart node=libcudart.so.13
	pattern='cuda[A-Z]*; __cuda[A-Z]*' ;;
libcudart.so.12)
	plain='' crate=cudart12 node=libcudart.so.12
	pattern='cuda[A-Z]*; __cuda[A-Z]*' ;;
libcuda.so.1)
	# The driver library carries no symbol versions: every cu* is its own.
	# The last names are for our other libraries, and the first of them for a worker
	# that finds this one (cuda/src/sys/internal.rs).
	plain=libcuda.so crate=cuda node=''
	pattern='cu[A-Z]*; paragpu_thread_context; paragpu_primary_ends; paragpu_session_*' ;;
libnvidia-ml.so.1)
	# The last name is for a worker that finds this library (nvml/src/sys/internal.rs).
	plain=libnvidia-ml.so crate=nvml node=''
	pattern='nvml*; paragpu_nvml' ;;
libparagpu-redirect.so)
	# Every object calls the first one before its constructors, the address
	# sanitizer the second one.
	plain='' crate=redirect_preload node=''
	pattern='__gmon_start__; __asan_default_options' profile=redirect BUILD=1
	target=${CARGO_TARGET_DIR:-$root/target}/redirect ;;
*)
	usage ;;
esac

if [ -n "${BUILD:-}" ]; then
	package=$(echo "paragpu-$crate" | tr _ -)
	cargo build --manifest-path "$root/Cargo.toml" --profile "$profile" -p "$package"
fi
archive=$target/libparagpu_$crate.a
if [ ! -f "$archive" ]; then
	echo "link.sh: $archive is missing; build paragpu-$crate first" >&2
	exit 1
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$out"

# What is exported; everything else stays inside.
{
	echo "$node {"
	echo "	global:"
	echo "		$pattern;"
	echo "	local:"
	echo "		*;"
	echo "};"
	# For libparagpu-redirect.so alone.
	case $crate in cudart*) echo "PARAGPU_PRIVATE { global: paragpu_*; };" ;; esac
} >"$work/exports.map"

# The redirector: few segments, as every program maps them, and the C library
# alone. Its archive holds compiler support that needs no unwinder.
if [ "$crate" = redirect_preload ]; then
	set -- -nostartfiles -Wl,-u,__gmon_start__ -Wl,-u,__asan_default_options "$archive" -Wl,-z,noseparate-code \
		-nodefaultlibs -lc
else
	set -- -Wl,--whole-archive "$archive" -Wl,--no-whole-archive \
		-static-libgcc -lgcc_eh -lgcc -lpthread -ldl -lm -lc
fi

# nodelete: the libraries keep per-thread state and fork handlers, which could
# not outlive them.
"${CC:-cc}" -shared -o "$work/$soname" \
	-Wl,-soname,"$soname" \
	-Wl,--version-script,"$work/exports.map" \
	-Wl,--gc-sections -Wl,--no-undefined -Wl,--as-needed -Wl,-O1 \
	-Wl,-z,now -Wl,-z,relro -Wl,-z,noexecstack -Wl,-z,nodelete \
	-Wl,--build-id "$@"

[ -n "${STRIP:-}" ] || [ "$crate" = redirect_preload ] && strip --strip-unneeded "$work/$soname"
mv "$work/$soname" "$out/$soname"
[ -z "$plain" ] || ln -sfn "$soname" "$out/$plain"
