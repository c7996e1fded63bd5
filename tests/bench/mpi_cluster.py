#!/usr/bin/env python3
"""gVirtuS's product of matrices over a cluster of nodes that share a host's GPU.

usage: mpi_cluster.py [--nodes LIST] [--sizes LIST] [--rounds N] [FOLDER]

Each node is a network namespace with a name, an address and a cable to the host's
bridge, and its rank has a virtual GPU of the host's one, over shared memory, a unix
socket, or TCP through the bridge. OpenMPI starts its daemons in the nodes and scatters
the rows of A over TCP. Products of all numbers of nodes must agree in every bit. Needs
root, OpenMPI, iproute2 and out/bench/mpiMatrixMul (`make -C tests/bench cluster`);
writes cluster.json into FOLDER, which page.py draws. The software GPU computes on the
cores that the ranks run on, so more nodes need not be faster.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
# pylint: disable=wrong-import-position
import gpu
import measure
from measure import harness, say

PROGRAM = os.path.join(harness.ROOT, "out/bench/mpiMatrixMul")
NETWORK = "10.77.0"
HOST = f"{NETWORK}.254"
# Said by the process that is already in the host's namespaces.
INSIDE = "CLUSTER_OF_NAMESPACES"
# A separate network, and namespace names that are not visible outside.
ENTER = 'mkdir -p /run/netns && mount -t tmpfs tmpfs /run/netns && ip link set lo up && exec "$@"'
# How OpenMPI reaches a node: as with ssh, a node's address and a command. It cuts a host's
# name at its first dot, and hosts of one name would share its files.
AGENT = """#!/bin/sh
node=$1
shift
export TMPDIR="${0%/*}/${node##*.}"
mkdir -p "$TMPDIR"
exec ip netns exec "$node" unshare --uts sh -c 'hostname "node$0"; exec sh -c "$*"' "${node##*.}" "$@"
"""
PATIENCE = 300


def call(*command):
    """Runs what must succeed."""
    subprocess.run(command, check=True)


def cluster(count):
    """A bridge at the host and a namespace for each node; their addresses, which are
    the namespaces' names as well."""
    call("ip", "link", "add", "br0", "type", "bridge")
    call("ip", "addr", "add", f"{HOST}/24", "dev", "br0")
    call("ip", "link", "set", "br0", "up")
    nodes = [f"{NETWORK}.{number + 1}" for number in range(count)]
    for number, node in enumerate(nodes):
        call("ip", "netns", "add", node)
        call("ip", "link", "add", f"node{number}", "type", "veth", "peer", "name", "eth0", "netns", node)
        call("ip", "link", "set", f"node{number}", "master", "br0", "up")
        call("ip", "-n", node, "addr", "add", f"{node}/24", "dev", "eth0")
        for link in ("eth0", "lo"):
            call("ip", "-n", node, "link", "set", link, "up")
    return nodes


def product(nodes, agent, environment, size, rounds):
    """What rank 0 said of each round."""
    settings = {
        "plm_rsh_agent": agent,
        "plm_rsh_no_tree_spawn": "1",
        "btl": "tcp,self",
        "btl_tcp_if_include": f"{NETWORK}.0/24",
        "oob_tcp_if_include": f"{NETWORK}.0/24",
    }
    command = ["mpirun", "--allow-run-as-root", "--map-by", "node", "--bind-to", "none", "-np", str(len(nodes))]
    command += ["-H", ",".join(f"{node}:1" for node in nodes)]
    for name, value in settings.items():
        command += ["--mca", name, value]
    for name, value in environment.items():
        if name.startswith("PARAGPU_") or name in ("LD_LIBRARY_PATH", "LD_PRELOAD"):
            command += ["-x", f"{name}={value}"]
    done = subprocess.run(
        [*command, PROGRAM, str(size), str(rounds)], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    said = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or len(said) != rounds:
        raise RuntimeError(f"{len(nodes)} nodes, size {size}: status {done.returncode}: {(done.stdout + done.stderr)[-1500:]}")
    return said


def measured(options, daemon, nodes, agent):
    """Rows and plots; whether all products agree."""
    rows, well, digests = [], True, {}
    across_nodes, across_sizes = {}, {}
    for way in harness.HOST_COMMUNICATORS:
        for size in options.sizes:
            for count in options.nodes:
                said = product(nodes[:count], agent, daemon.guest_environment(way), size, options.rounds)
                # The first round also loads the kernel.
                later = said[1:] or said
                seconds, busy = (statistics.median(entry[name] for entry in later) for name in ("seconds", "gpu"))
                first = digests.setdefault(size, said[0]["digest"])
                same = all(entry["right"] and entry["digest"] == first for entry in said)
                well &= same
                say(f"{way}, size {size}, {count} nodes: {seconds:.3f} s, of it GPU {busy:.3f} s, {'same' if same else 'OTHER'} bits")
                rows.append([way, size, count, seconds, busy, seconds - busy, "yes" if same else "NO"])
                across_nodes.setdefault(f"{way}, {size}", []).append((count, seconds))
                across_sizes.setdefault(f"{way}, {count} nodes", []).append((size, seconds))
    largest, most = (f", {max(options.sizes)}", f", {max(options.nodes)} nodes")
    plots = [
        measure.lines(
            f"Product of size {max(options.sizes)}: time against nodes",
            "nodes",
            "seconds",
            {name.removesuffix(largest): points for name, points in across_nodes.items() if name.endswith(largest)},
        ),
        measure.lines(
            f"Product on {max(options.nodes)} nodes: time against size",
            "size",
            "seconds",
            {name.removesuffix(most): points for name, points in across_sizes.items() if name.endswith(most)},
        ),
    ]
    head = ["way", "size", "nodes", "seconds", "of it GPU s", "of it network s", "same bits"]
    return [{"title": "gvirtus-mpi-product", "head": head, "rows": rows}], plots, well


def main():
    """The cluster and its products."""
    numbers = lambda text: [int(word) for word in text.split(",")]  # noqa: E731
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=numbers, default=[1, 2, 4, 8], help="default 1,2,4,8")
    parser.add_argument("--sizes", type=numbers, help="default 64,128,256,512, on a GPU 512,1024,2048,4096")
    parser.add_argument("--rounds", type=int, default=4, help="products of each, the first not counted (default 4)")
    parser.add_argument("folder", nargs="?", default=os.path.join(harness.ROOT, "out/experiments"), help="where results go")
    options = parser.parse_args()
    if INSIDE not in os.environ:
        enter = ["unshare", "--net", "--mount", "sh", "-c", ENTER, "_", sys.executable, *sys.argv]
        return subprocess.run(enter, env={**os.environ, INSIDE: "1"}, check=False).returncode
    try:
        device = gpu.probe()
        kind, about = "cuda", f"{device['name']}, driver {device['driver']}; {measure.machine()}"
        options.sizes = options.sizes or [512, 1024, 2048, 4096]
    except gpu.NoGpu as why:
        say(f"{why}: the software GPU serves")
        kind, about = "software", f"software GPU; {measure.machine()}"
        options.sizes = options.sizes or [64, 128, 256, 512]
    nodes = cluster(max(options.nodes))
    with tempfile.TemporaryDirectory(prefix="paragpu-mpi-") as folder:
        agent = os.path.join(folder, "agent")
        with open(agent, "w", encoding="utf-8") as file:
            file.write(AGENT)
        os.chmod(agent, 0o755)
        # Nobody else is in this network.
        trusted = "--set=tcp.allow_remote=true"
        with harness.Daemon(f"--warm={max(options.nodes)}", trusted, device=kind, tcp=f"{HOST}:0") as daemon:
            tables, plots, well = measured(options, daemon, nodes, agent)
    os.makedirs(options.folder, exist_ok=True)
    path = os.path.join(options.folder, "cluster.json")
    title = "A product of matrices over a cluster of nodes that share a GPU"
    measure.store(path, measure.described(title, about, "mpi_cluster.py", plots=plots, tables=tables))
    print(f"written to {os.path.relpath(path)}")
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
