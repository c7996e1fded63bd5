#!/usr/bin/env bash
# Builds Kubernetes' apiserver, scheduler and controller manager from the Go
# module proxy: tests/kubernetes/build.sh DIRECTORY. Takes minutes; a complete
# build is kept.
set -euo pipefail
version=1.36.3
target=$1
if [ "$(cat "$target/.complete" 2>/dev/null)" = "$version" ]; then
	exit 0
fi
command -v go >/dev/null || {
	echo "go is missing: install Go 1.26 or newer" >&2
	exit 1
}
echo "== building kubernetes $version (once, minutes)"
rm -rf "$target"
mkdir -p "$target"
cd "$target"
export CGO_ENABLED=0 GOFLAGS="-mod=mod -modcacherw" GOWORK=off
# They hold gigabytes that nothing else needs.
export GOCACHE="$target/.built" GOMODCACHE="$target/.modules"
declare -A commands=(
	[kube-apiserver]=APIServer
	[kube-scheduler]=Scheduler
	[kube-controller-manager]=ControllerManager
)
go mod init paragpu.test/kubernetes 2>/dev/null
# In its own tree the modules of Kubernetes are folders.
modules=$(go mod download -json "k8s.io/kubernetes@v$version" |
	sed -n 's/.*"GoMod": "\(.*\)",/\1/p')
sed -n 's|^\s*\(k8s.io/[a-z-]*\) => ./staging.*|\1|p' "$modules" |
	while read -r module; do
		go mod edit -replace "$module=$module@v0.${version#1.}"
	done
go mod edit -require "k8s.io/kubernetes@v$version"
for name in "${!commands[@]}"; do
	mkdir -p "$name"
	cat >"$name/main.go" <<-END
		package main

		import (
			"os"

			"k8s.io/component-base/cli"
			"k8s.io/kubernetes/cmd/$name/app"
		)

		func main() { os.Exit(cli.Run(app.New${commands[$name]}Command())) }
	END
done
go mod tidy
for name in "${!commands[@]}"; do
	go build -trimpath -ldflags '-s -w' -o "bin/$name" "./$name"
done
rm -rf "$GOCACHE" "$GOMODCACHE"
echo "$version" >"$target/.complete"
