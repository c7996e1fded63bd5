#!/bin/sh
# Installs the Debian packages named as arguments that are not there yet.
# Does nothing, and needs no network, when all are.
set -eu

missing=
for package in "$@"; do
    status=$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null) || status=
    [ "$status" = installed ] || missing="$missing $package"
done
[ -n "$missing" ] || exit 0

if [ "$(id -u)" -ne 0 ]; then
    echo "missing Debian packages:$missing" >&2
    echo "install them:  sudo apt-get install --no-install-recommends$missing" >&2
    exit 1
fi
echo "installing:$missing"
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
# Package names hold no spaces.
# shellcheck disable=SC2086
apt-get install -y -qq --no-install-recommends $missing
