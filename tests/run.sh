#!/usr/bin/env bash
# The tests beyond `cargo test`: the wire in Python, every program over every
# communicator of a host, faults, and one VM.
set -euo pipefail
cd "$(dirname "$0")"

run() {
    echo "== $*"
    "$@"
}

run python3 -m unittest discover -s wire -t wire
run python3 -m unittest discover -s end_to_end -t .
