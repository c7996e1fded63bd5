#!/bin/sh
# Builds vhost-device-vsock, the vhost-user daemon that gives test VMs their
# vsock, into .cache/tools. Does nothing, and needs no network, where it is
# there. Where it cannot be built it says so and succeeds: what needs it is left
# out, and says so, too.
set -eu
cd "$(dirname "$0")/../.."

version=0.3.0
tools=.cache/tools
program=$tools/bin/vhost-device-vsock

mkdir -p "$tools"
# One at a time, as make may run this twice at once.
exec 9>"$tools/lock"
flock 9
[ "$("$program" --version 2>/dev/null || true)" != "vhost-device-vsock $version" ] || exit 0

echo "== building vhost-device-vsock $version into .cache/tools"
# A target folder of its own, so that what cargo is told elsewhere changes nothing.
if ! cargo install --locked --force --version "$version" --root "$tools" \
    --target-dir "$tools/target" vhost-device-vsock; then
    echo "vhost-device-vsock cannot be built: vsock will be left out of VMs" >&2
fi
rm -rf "$tools/target"
