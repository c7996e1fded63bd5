#!/usr/bin/env python3
"""Leases that Kubernetes places: the driver against a real control plane.

There is no kubelet and no container runtime: a stand-in calls the plugin's gRPC,
and programs run in mount namespaces with what the CDI file says. Needs root, etcd
and the binaries of tests/kubernetes/build.sh. Writes out/kubernetes.json.
"""

import argparse
import collections
import json
import os
import signal
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, ".."))
# pylint: disable=wrong-import-position
import harness
from kubernetes.cluster import DRIVER, RESOURCES, Cluster, Refused, eventually
from pool.cluster import Program

GUEST = os.path.join(HERE, "..", "pool", "guest.py")
GIB = 1 << 30


class Results:
    """What was found, with what was wanted."""

    def __init__(self):
        self.entries = []

    def add(self, name, value, goal, met, what):
        """One of them."""
        self.entries.append({"name": name, "value": value, "goal": goal, "met": met, "what": what})
        print(f"{'ok  ' if met else 'FAIL'} {name}: {value} ({goal}) {what}", flush=True)

    def exactly(self, name, value, goal, what):
        """It is this."""
        self.add(name, value, goal, value == goal, what)

    def most(self, name, value, goal, what):
        """It is no more than this."""
        self.add(name, round(value, 3), goal, value <= goal, what)


def run(cluster, node, claim, *arguments):
    """What a program in a container says, and its exit status."""
    command, environment = cluster.container(node, claim, sys.executable, GUEST, *arguments)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    return (done.stdout + done.stderr).strip(), done.returncode


def begin(cluster, node, claim):
    """A program in a container that works on and on."""
    command, environment = cluster.container(node, claim, sys.executable, GUEST, "run")
    program = Program(command, environment)
    eventually(lambda: program.rounds() > 2 or program.ended() is not None, "a program works")
    return program


def published(cluster, results):
    """Both hosts' slices."""
    began = time.monotonic()

    def slices():
        items = cluster.call("GET", f"{RESOURCES}/resourceslices")["items"]
        return items if len(items) == 2 and all(item["spec"].get("devices") for item in items) else None

    found = eventually(slices, "both hosts have a slice")
    results.most("published_s", time.monotonic() - began, 60, "from the start of both hosts to both slices")
    pools = sorted((item["spec"]["pool"]["name"], len(item["spec"]["devices"])) for item in found)
    results.exactly("slices", str(pools), "[('gpu1', 1), ('gpu2', 1)]", "hosts, and GPUs of each")


def placement(cluster, results):
    """Claims are placed by capacity."""
    names = ["a", "b", "c", "d"]
    began = time.monotonic()
    for name in names:
        cluster.pod(name, "1Gi")
    claims = {name: eventually(lambda name=name: cluster.placed(name), f"{name} is placed") for name in names}
    results.most("placed_s", time.monotonic() - began, 30, "four Pods of 1 GiB on two GPUs of 2 GiB")
    per_gpu = collections.Counter(claim["status"]["allocation"]["devices"]["results"][0]["pool"] for _, claim in claims.values())
    results.exactly("per_gpu", str(sorted(per_gpu.values())), "[2, 2]", "claims that fit one GPU")
    cluster.pod("waits", "1Gi")

    def looked_at():
        status = cluster.find("/api/v1/namespaces/default/pods/waits").get("status", {})
        return any(it.get("reason") == "Unschedulable" for it in status.get("conditions", []))

    eventually(looked_at, "the scheduler looked at the fifth")
    results.exactly("fifth_is_placed", cluster.placed("waits") is not None, False, "a Pod for whose claim no GPU has room")
    cluster.pod("greedy", "512Mi", "950")
    cluster.delete("d")
    began = time.monotonic()
    eventually(lambda: cluster.placed("waits"), "the fifth Pod is placed")
    results.most("fifth_after_release_s", time.monotonic() - began, 30, "from the deletion of another Pod to its place")
    results.exactly("greedy_is_placed", cluster.placed("greedy") is not None, False, "a claim of 95 % of a GPU's time beside one of 10 %")
    cluster.delete("greedy")
    return claims


def prepared(cluster, results, node, claim):
    """The kubelet's calls; programs within the claim's limits."""
    began = time.monotonic()
    device, error = cluster.kubelet(node, "prepare", claim)
    results.exactly("prepare", (device, error), (f"{DRIVER}/claim={claim['metadata']['uid']}", ""), "the CDI device, and the error")
    results.most("prepare_s", time.monotonic() - began, 10, "key, lease and certificate through the API server")
    again = cluster.kubelet(node, "prepare", claim)
    results.exactly("prepare_again", again, (device, ""), "the same once more")
    results.exactly("within_the_claim", run(cluster, node, claim, "take", str(GIB // 2)), ("took", 0), "512 MiB of 1 GiB, as another user")
    results.exactly("beyond_the_claim", run(cluster, node, claim, "take", str(GIB + (1 << 20))), ("refused", 0), "1 GiB and 1 MiB of 1 GiB; the GPU has 2 GiB")


def restarted(cluster, results, node, claim):
    """The host's role is killed and comes back while a program runs."""
    pool = claim["status"]["allocation"]["devices"]["results"][0]["pool"]
    program = begin(cluster, node, claim)
    begun = cluster.log(pool).count("a lease begins")
    cluster.kill(f"{pool}-driver")
    eventually(lambda: "may be claimed again" in cluster.log(pool), "the daemon notices")
    cluster.host(pool)
    eventually(lambda: cluster.log(pool).count("a lease begins") > begun, "the lease is claimed again")
    rounds = program.rounds()
    eventually(lambda: program.rounds() > rounds or program.ended() is not None, "the program works on")
    results.exactly("restart_of_the_host_role", program.ended(), None, "exit status of a program meanwhile; none: it runs")
    results.exactly("new_program_after_restart", run(cluster, node, claim, "take", "1048576"), ("took", 0), "with the same files")
    return program


def deleted(cluster, results, program, name, claim):
    """A Pod is deleted while its program runs, which no kubelet ends."""
    began = time.monotonic()
    cluster.delete(name)
    eventually(lambda: program.ended() is not None, "the program ends")
    results.most("deletion_to_error_s", time.monotonic() - began, 30, "from the deletion of the Pod to the program's end")
    results.exactly("deletion_while_running", program.ended(), 3, f"exit status of its program (3: a CUDA error): {program.text()[-200:]}")
    path = f"{RESOURCES}/namespaces/default/resourceclaims/{claim['metadata']['name']}"
    results.exactly("claim_is_gone", cluster.find(path), None, "and no lease is left over")


def unprepared(cluster, results, node, claim):
    """The kubelet's last call."""
    results.exactly("unprepare", cluster.kubelet(node, "unprepare", claim), ("", ""), "and its error")
    uid = claim["metadata"]["uid"]
    left = [path for path in (f"claims/{uid}", f"cdi/{DRIVER}-{uid}.json") if os.path.exists(f"{cluster.folder}/{node}/{path}")]
    results.exactly("files_left", str(left), "[]", "of the claim on its node")


def released(cluster, results, node, claim):
    """Unprepared while the claim stays: the host ends the lease."""
    pool = claim["status"]["allocation"]["devices"]["results"][0]["pool"]
    device, error = cluster.kubelet(node, "prepare", claim)
    over = cluster.log(pool).count("a lease is over")
    results.exactly("second_prepare", (bool(device), error), (True, ""), "of another Pod's claim")
    unprepared(cluster, results, node, claim)
    eventually(lambda: cluster.log(pool).count("a lease is over") > over, "the daemon ends the lease")
    path = f"{RESOURCES}/namespaces/default/resourceclaims/{claim['metadata']['name']}"
    results.exactly("status_is_empty", cluster.find(path)["status"].get("devices", []), [], "what the claim says of its devices")


def strangers(cluster, results):
    """What the driver's accounts may not do."""
    with open(f"{cluster.folder}/node.token", encoding="utf-8") as file:
        node = file.read()
    attempts = {
        "slice_by_a_node": ("POST", f"{RESOURCES}/resourceslices", {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "x"}}),
        "secrets_by_a_node": ("GET", "/api/v1/secrets", None),
        "pod_by_a_node": ("POST", "/api/v1/namespaces/default/pods", {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}}),
    }
    for name, (method, path, body) in attempts.items():
        try:
            cluster.call(method, path, body, token=node)
            said = "allowed"
        except Refused as error:
            said = str(error).split()[0]
        results.exactly(name, said, "403", "with the token of the node's role")


def main():
    """Runs all, and writes the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binaries", default=os.path.join(harness.ROOT, ".cache", "kubernetes", "bin"))
    parser.add_argument("--output", default=os.path.join(harness.ROOT, "out", "kubernetes.json"))
    arguments = parser.parse_args()
    if os.geteuid() != 0:
        raise SystemExit("this makes mount namespaces: run it as root")
    # A terminated run ends its cluster, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    began, results = time.monotonic(), Results()
    try:
        with Cluster(arguments.binaries) as cluster:
            results.most("control_plane_s", cluster.ready_s, 180, "etcd, API server, scheduler, controller manager")
            for example in ("class.yaml", "rights.yaml"):
                cluster.apply(example)
            for account in ("host", "node"):
                cluster.account(account)
            harness.certificates(f"{cluster.folder}/tls")
            for name in ("gpu1", "gpu2"):
                cluster.daemon(name)
                cluster.host(name)
            for name in ("node1", "node2"):
                cluster.node(name)
            published(cluster, results)
            strangers(cluster, results)
            claims = placement(cluster, results)
            node, claim = claims["a"]
            prepared(cluster, results, node, claim)
            program = restarted(cluster, results, node, claim)
            deleted(cluster, results, program, "a", claim)
            unprepared(cluster, results, node, claim)
            released(cluster, results, *claims["b"])
    except AssertionError as error:
        # What was found until then counts.
        results.exactly("came_to_its_end", str(error), "yes", "the steps after this one did not run")
    results.most("all_s", time.monotonic() - began, 600, "the whole run")
    os.makedirs(os.path.dirname(arguments.output), exist_ok=True)
    with open(arguments.output, "w", encoding="utf-8") as file:
        json.dump({"version": 1, "results": results.entries}, file, indent=1)
    sys.exit(not all(entry["met"] for entry in results.entries))


if __name__ == "__main__":
    main()
