#!/usr/bin/env python3
"""Leases that Kubernetes places: the driver against a real control plane.

There is no kubelet and no container runtime: a stand-in calls the plugin's gRPC,
and programs run in mount namespaces with what the CDI file says. Needs root, etcd
and the binaries of tests/kubernetes/build.sh. Writes out/kubernetes.json.
"""

import argparse
import collections
import os
import signal
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, ".."))
# pylint: disable=wrong-import-position
import harness
from harness.results import Results
from kubernetes.cluster import DRIVER, RESOURCES, Cluster, Refused, eventually
from pool.cluster import Program

GUEST = os.path.join(HERE, "..", "pool", "guest.py")
GIB = 1 << 30


def finish(command):
    """What a program in a container says, and its exit status."""
    command, environment = command
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    return (done.stdout + done.stderr).strip(), done.returncode


def run(cluster, node, claim, *arguments):
    """The same of tests/pool/guest.py."""
    return finish(cluster.container(node, claim, sys.executable, GUEST, *arguments))


def begin(cluster, node, claim):
    """A program in a container that works on and on."""
    command, environment = cluster.container(node, claim, sys.executable, GUEST, "run")
    program = Program(command, environment)
    eventually(lambda: program.rounds() > 2 or program.ended() is not None, "a program works")
    return program


def works_on(program):
    """Does it work, from now on?"""
    rounds = program.rounds()
    eventually(lambda: program.rounds() > rounds + 2 or program.ended() is not None, "the program works on, or ends")
    return "works" if program.ended() is None else f"ended with {program.ended()}: {program.text()[-300:]}"


def device(claim):
    """What a claim was given."""
    (found,) = claim["status"]["allocation"]["devices"]["results"]
    return found


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
    attributes = found[0]["spec"]["devices"][0]["attributes"]
    told = {name: next(iter(value.values())) for name, value in attributes.items()}
    wanted = {"productName", "kind", "version", "uuid", "cudaComputeCapability", "cudaDriverVersion"}
    results.add("attributes", str(told), sorted(wanted), set(told) == wanted and told["uuid"].startswith("GPU-"), "of a device")


def placement(cluster, results):
    """Claims are placed by capacity."""
    times = {"a": "100", "b": "150", "c": "200", "d": "250"}
    began = time.monotonic()
    for name, share in times.items():
        cluster.pod(name, "1Gi", share)
    claims = {name: eventually(lambda name=name: cluster.placed(name), f"{name} is placed") for name in times}
    results.most("placed_s", time.monotonic() - began, 30, "four Pods of 1 GiB on two GPUs of 2 GiB")
    per_gpu = collections.Counter(device(claim)["pool"] for _, claim in claims.values())
    results.exactly("per_gpu", str(sorted(per_gpu.values())), "[2, 2]", "claims that fit one GPU")
    newest = 'device.attributes["gpu.paragpu.dev"].cudaComputeCapability.isGreaterThan(semver("99.0.0"))'
    over = {
        "waits": ("1Gi", "a Pod for whose claim no GPU has room"),
        "too_big": ("3Gi", "a claim of more memory than any GPU has"),
        "greedy": ("512Mi", "950", "a claim of 95 % of a GPU's time beside two of 10 % and more"),
        "too_new": ("1Mi", "1", newest, "a claim of a compute capability that no GPU has"),
    }
    for name, (*wanted, _) in over.items():
        cluster.pod(name.replace("_", "-"), *wanted)
    for name, (*_, note) in over.items():
        pod = name.replace("_", "-")
        eventually(lambda pod=pod: cluster.refused(pod), f"the scheduler looked at {pod}")
        results.exactly(f"{name}_is_placed", cluster.placed(pod) is not None, False, note)
    cluster.delete("d")
    began = time.monotonic()
    eventually(lambda: cluster.placed("waits"), "the waiting Pod is placed")
    results.most("waits_after_release_s", time.monotonic() - began, 30, "from the deletion of another Pod to its place")
    stay = [name for name in over if name != "waits" and cluster.placed(name.replace("_", "-"))]
    results.exactly("others_are_placed", str(stay), "[]", "of those that no release helps")
    for name in ("too-big", "greedy", "too-new"):
        cluster.delete(name)
    claims["waits"] = cluster.placed("waits")
    del claims["d"]
    return claims


def prepared(cluster, results, node, claim):
    """The kubelet's calls; programs within the claim's limits."""
    began = time.monotonic()
    name, error = cluster.kubelet(node, "prepare", claim)
    results.exactly("prepare", (name, error), (f"{DRIVER}/claim={claim['metadata']['uid']}", ""), "the CDI device, and the error")
    results.most("prepare_s", time.monotonic() - began, 10, "key, lease and certificate through the API server")
    again = cluster.kubelet(node, "prepare", claim)
    results.exactly("prepare_again", again, (name, ""), "the same once more")
    program = os.path.join(harness.PROGRAMS, "vectorAdd")
    said, status = finish(cluster.container(node, claim, program))
    results.add("vector_add", status, 0, status == 0, f"a CUDA program as another user, with the environment of the CDI file: {said.splitlines()[-1:]}")
    results.exactly("within_the_claim", run(cluster, node, claim, "take", str(GIB // 2)), ("took", 0), "512 MiB of 1 GiB")
    results.exactly("beyond_the_claim", run(cluster, node, claim, "take", str(GIB + (1 << 20))), ("refused", 0), "1 GiB and 1 MiB of 1 GiB; the GPU has 2 GiB")


def shared(cluster, results, one, other):
    """Two claims of one GPU: a program of each at the same time."""
    (node, claim), (second_node, second) = one, other
    results.exactly("one_gpu", (device(claim)["pool"], device(claim)["device"]), (device(second)["pool"], device(second)["device"]), "of both claims")
    results.exactly("prepare_beside", cluster.kubelet(second_node, "prepare", second)[1], "", "the error for the second claim of the GPU")
    programs = [begin(cluster, node, claim), begin(cluster, second_node, second)]
    sessions = cluster.sessions(device(claim)["pool"])
    seen = sorted((session["device"], session["vm"].startswith("lease-")) for session in sessions)
    results.exactly("sessions_of_one_gpu", str(seen), str([("software:0", True)] * 2), "on the host")
    results.exactly("leases_of_one_gpu", len({session["vm"] for session in sessions}), 2, "their leases")
    weights = sorted(session["turns"]["share"]["weight"] for session in sessions)
    wanted = sorted(int(device(claim)["consumedCapacity"]["time"]) for claim in (claim, second))
    results.exactly("weights_of_one_gpu", weights, wanted, "weights of GPU time: the claims' thousandths")
    full = ("take", str(GIB - (64 << 20)))
    results.exactly("full_beside", run(cluster, node, claim, *full), ("took", 0), "960 MiB of a claim beside the other's program")
    results.exactly("beyond_beside", run(cluster, second_node, second, "take", str(GIB + (1 << 20))), ("refused", 0), "more than the other claim has")
    for name, program in zip(("first", "second"), programs):
        results.exactly(f"{name}_of_both", works_on(program), "works", "its program meanwhile")
    return programs


def restarted(cluster, results, node, claim, program):
    """The host's parts end and come back while a program runs."""
    pool = device(claim)["pool"]

    def meanwhile(name, note):
        results.exactly(name, works_on(program), "works", f"a program, after {note}")
        results.exactly(f"{name}_anew", run(cluster, node, claim, "take", "1048576"), ("took", 0), "a new program, with the same files")

    def again(begun):
        eventually(lambda: cluster.log(pool).count("a lease begins") >= begun + 2, "both leases are claimed again")

    begun = cluster.log(pool).count("a lease begins")
    kept = cluster.log(pool).count("may be claimed again")
    cluster.kill(f"{pool}-driver")
    eventually(lambda: cluster.log(pool).count("may be claimed again") >= kept + 2, "the daemon notices")
    cluster.host(pool)
    again(begun)
    meanwhile("host_role_killed", "its host's role was killed and started again")

    begun = cluster.log(pool).count("a lease begins")
    results.exactly("host_role_terminated", cluster.end(f"{pool}-driver"), 0, "exit status of the host's role after SIGTERM")
    cluster.host(pool)
    again(begun)
    meanwhile("host_role_ended", "its host's role ended and was started again")

    begun = cluster.log(pool).count("a lease begins")
    cluster.kill(pool)
    cluster.daemon(pool)
    again(begun)
    meanwhile("daemon_killed", "its host's paragpud was killed and started again")

    results.exactly("node_role_terminated", cluster.end(f"{node}-driver"), 0, "exit status of the node's role after SIGTERM")
    results.exactly("node_role_sockets", os.path.exists(cluster.registration(node)), False, "is its socket left over?")
    cluster.plugin(node)
    results.exactly("prepare_after_restart", cluster.kubelet(node, "prepare", claim)[1], "", "the error of the node's next process")
    meanwhile("node_role_ended", "the node's role ended and was started again")


def stopped(cluster, results, programs, leases):
    """paragpud is stopped, which ends its sessions, and started; new programs."""
    pool = device(leases[0][1])["pool"]
    begun = cluster.log(pool).count("a lease begins")
    cluster.end(pool)
    cluster.daemon(pool)
    for program in programs:
        eventually(lambda program=program: program.ended() is not None, "the program ends")
    ends = [program.ended() for program in programs]
    results.exactly("daemon_stopped", str(ends), "[3, 3]", "exit status of the programs (3: a CUDA error) whose host's paragpud was stopped and started")
    eventually(lambda: cluster.log(pool).count("a lease begins") >= begun + 2, "both leases are claimed again")
    new = [begin(cluster, *lease) for lease in leases]
    for name, program in zip(("first", "second"), new):
        results.exactly(f"{name}_after_the_stop", works_on(program), "works", "a new program of the claim, with the same files")
    return new


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


def released(cluster, results, program, node, claim):
    """Unprepared while the claim stays and its program runs: the host ends the lease."""
    unprepared(cluster, results, node, claim)
    eventually(lambda: program.ended() is not None, "the program ends")
    results.exactly("unprepared_while_running", program.ended(), 3, "exit status of its program (3: a CUDA error)")
    results.exactly("sessions_left", cluster.sessions(device(claim)["pool"]), [], "on its host")
    path = f"{RESOURCES}/namespaces/default/resourceclaims/{claim['metadata']['name']}"
    results.exactly("status_is_empty", cluster.find(path)["status"].get("devices", []), [], "what the claim says of its devices")


def drained(cluster, results, pool, pods):
    """A host's role that drains: its Pods are evicted, the others stay."""
    cluster.end(f"{pool}-driver")
    cluster.host(pool, "--drain")
    began = time.monotonic()

    def evicted(name):
        pod = cluster.find(f"/api/v1/namespaces/default/pods/{name}")
        return not pod or "deletionTimestamp" in pod["metadata"]

    leave = [name for name, (_, claim) in pods.items() if device(claim)["pool"] == pool]
    eventually(lambda: all(evicted(name) for name in leave), "its Pods are evicted")
    results.most("drain_s", time.monotonic() - began, 60, f"until the {len(leave)} Pods of a host are evicted")
    stay = [name for name in pods if name not in leave and evicted(name)]
    results.exactly("drain_beside", str(stay), "[]", "Pods of the other host that are evicted, too")


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
                cluster.join(name)
            for name in ("node1", "node2"):
                cluster.node(name)
            published(cluster, results)
            strangers(cluster, results)
            claims = placement(cluster, results)
            node, claim = claims.pop("a")
            prepared(cluster, results, node, claim)
            beside = next(name for name, (_, other) in claims.items() if device(other)["pool"] == device(claim)["pool"])
            second = claims[beside]
            first, other = shared(cluster, results, (node, claim), second)
            restarted(cluster, results, node, claim, first)
            results.exactly("second_after_all", works_on(other), "works", "the program beside it")
            first, other = stopped(cluster, results, [first, other], [(node, claim), second])
            deleted(cluster, results, first, "a", claim)
            unprepared(cluster, results, node, claim)
            results.exactly("second_after_deletion", works_on(other), "works", "the program of the other claim")
            released(cluster, results, other, *second)
            drained(cluster, results, device(second[1])["pool"], claims)
    except AssertionError as error:
        # What was found until then counts.
        results.exactly("came_to_its_end", str(error), "yes", "the steps after this one did not run")
    results.most("all_s", time.monotonic() - began, 600, "the whole run")
    sys.exit(not results.write(arguments.output))


if __name__ == "__main__":
    main()
