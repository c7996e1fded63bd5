#!/bin/bash
# Stresses the guest driver in one boot of a VM whose kernel checks its
# memory: 1,000 processes opened, used and killed; the driver unbound and the
# device unplugged under load; sleep. Afterwards nothing must be held that was
# not held before.
#
# usage: soak.sh [CYCLES [ROUNDS]]   (default: 1000 25)
set -euo pipefail
case ${1:-} in -h | --help) exec sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" ;; esac

here=$(cd "$(dirname "$0")" && pwd)
commands=$(mktemp)
trap 'rm -f "$commands"' EXIT
{
	echo "CYCLES=${1:-1000} ROUNDS=${2:-25}"
	cat "$here/soak"
} >"$commands"
# Each plugging costs descriptors: hotplug.py says why.
ulimit -n "$(ulimit -Hn)"
# A kernel that checks each of its allocations takes its time.
export PARAGPU_BOOT_TIMEOUT=${PARAGPU_BOOT_TIMEOUT:-300}
COMMANDS=$commands TIMEOUT=${TIMEOUT:-3600} APPEND='slub_debug=FZPU' \
	"$here/run.sh" "$here/../../out/soak-module"
