#!/bin/sh
# Installs the Debian packages named as arguments that are not there yet.
# Does nothing, and needs neither network nor root, when all are.
set -eu

if ! command -v dpkg-query >/dev/null; then
    echo "this is no Debian: taking for granted what these packages hold: $*" >&2
    exit 0
fi

find_missing() {
    missing=
    for package in "$@"; do
        status=$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null) || status=
        [ "$status" = installed ] || missing="$missing $package"
    done
}

find_missing "$@"
[ -n "$missing" ] || exit 0

if [ "$(id -u)" -ne 0 ]; then
    echo "Debian packages are missing and only root can install them:" \
        "apt-get install --no-install-recommends$missing" >&2
    exit 1
fi

# One at a time, as make may run this twice at once.
exec 9</var/lib/dpkg
flock 9
find_missing "$@"
[ -n "$missing" ] || exit 0

echo "== installing Debian packages:$missing"
export DEBIAN_FRONTEND=noninteractive
# What an interrupted installation left half done.
dpkg --configure -a
# Another apt may be at work, as in a machine's first minutes.
wait='-o DPkg::Lock::Timeout=600'
# Neither options nor package names hold spaces.
# shellcheck disable=SC2086
apt-get $wait -q update
# shellcheck disable=SC2086
apt-get $wait -q -y --no-install-recommends install $missing
