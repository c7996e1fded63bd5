#!/bin/sh
# Runs semantics.cu and overhead.cu over NVIDIA's libcudart.so.13 and over ours,
# on a machine with a GPU, and fails unless the answers are equal.
#
#   compare-with-nvidia.sh PROGRAMS OURS THEIRS
#
# PROGRAMS holds the two compiled programs, OURS and THEIRS a libcudart.so.13.
set -u
[ $# -eq 3 ] || { echo "usage: compare-with-nvidia.sh PROGRAMS OURS THEIRS" >&2; exit 2; }
programs=$1 ours=$2 theirs=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
status=0

over() {
	folder=$1
	shift
	LD_LIBRARY_PATH=$folder${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} timeout 60 "$@"
}

for part in devices pointers copies arrays streams launches graphs fork reset trap address; do
	over "$ours" "$programs/semantics" "$part" >"$work/ours" 2>"$work/errors"
	echo "exit $?" >>"$work/ours"
	over "$theirs" "$programs/semantics" "$part" >"$work/theirs" 2>/dev/null
	echo "exit $?" >>"$work/theirs"
	if diff "$work/theirs" "$work/ours" >"$work/diff"; then
		echo "$part: equal ($(wc -l <"$work/ours") lines)"
	else
		status=1
		echo "$part: DIFFERENT (< NVIDIA's, > ours)"
		cat "$work/diff" "$work/errors"
	fi
done
echo "overhead, NVIDIA's:"
over "$theirs" "$programs/overhead"
echo "overhead, ours:"
over "$ours" "$programs/overhead"
exit $status
