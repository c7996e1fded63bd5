"""Graphs with very many nodes and nested bodies."""

import struct
import time

import wire
from field import ARENA, CHUNK, ENDLESS, attack, expect, ptx, resident
from memory import LIMIT, LIMITED, OWN

# Most nodes of a graph.
NODES = 1 << 20
# A session's allowance of work in flight, which is not charged to its VM.
UNDER_WAY = 32 << 20


def node(work=b"", call=0, after=b""):
    """A node's bytes; without a call it does nothing."""
    return wire.encode("GraphNode", dict(call=call, after=after, work=work))


def conditional(condition, bodies):
    """A node whose bodies have so many nodes each."""
    sizes = struct.pack(f"<{len(bodies)}I", *bodies)
    work = wire.encode_call("GraphConditional", condition=condition, kind=1, value=0, assigns=False, bodies=sizes)
    return node(work, wire.NUMBERS["GraphConditional"])


def send(session, nodes, graph=500):
    """Sends a graph's nodes, as many a frame as fit; returns how many there are."""
    session.post("GraphBegin", graph=graph)
    first, count, part = 0, 0, bytearray()
    for one in nodes:
        if len(part) + len(one) > 200_000:
            session.post("GraphNodes", graph=graph, first=first, nodes=part)
            first, part = count, bytearray()
        part += one
        count += 1
    session.post("GraphNodes", graph=graph, first=first, nodes=part)
    return count


def instantiate(session, nodes, graph=500):
    """Makes a graph; whether there was room for it."""
    count = send(session, nodes, graph)
    try:
        session.call("GraphInstantiate", graph=graph, nodes=count)
    except wire.Failed as failed:
        expect(failed.status == 2, f"a graph of {count} nodes: {failed}")
        session.call("GraphDestroy", graph=graph)
        return False
    return True


@attack
def graphs_of_a_million_nodes(field):
    """Such a graph is created and launched; a neighbour continues meanwhile."""
    session, neighbour = field.session(), field.neighbour()
    neighbour.call("MemMap", address=ARENA, size=CHUNK)
    expect(instantiate(session, (node() for _ in range(NODES))), "a graph of a million nodes is refused")
    for _ in range(2):
        session.post("GraphLaunch", graph=500, stream=0)
        neighbour.call("CopyFromDevice", source=ARENA, size=4096, stream=0)
    session.call("ContextSynchronize")
    session.post("GraphDestroy", graph=500)
    # One more is too many, of nodes as of numbers.
    count = send(session, (node() for _ in range(NODES + 1)), graph=501)
    try:
        session.call("GraphInstantiate", graph=501, nodes=count)
        expect(False, "a graph has more nodes than any may have")
    except wire.Failed:
        pass
    neighbour.call("CopyFromDevice", source=ARENA, size=4096, stream=0)
    return NODES


@attack
def conditionals_beside_each_other(field):
    """Each value is found without a look at all others, or this lasts minutes."""
    session, many = field.session(), 300_000
    expect(instantiate(session, (conditional(1 + number, [0]) for number in range(many))), "no room for conditional nodes")
    return many


@attack
def conditionals_without_end(field):
    session = field.session()
    for depth in (65, 1000, 100_000, NODES):
        count = send(session, (conditional(1, [depth - 1 - number]) for number in range(depth)), graph=depth)
        try:
            session.call("GraphInstantiate", graph=depth, nodes=count)
            expect(False, f"{depth} conditional nodes around each other")
        except wire.Failed:
            session.post("GraphDestroy", graph=depth)
    expect(instantiate(session, (conditional(1, [63 - number]) for number in range(64))), "64 around each other are refused")
    return 5


@attack
def graphs_without_end(field):
    """Their nodes count for the VM as other memory of the host does."""
    field.again(*LIMITED)
    sessions, graphs = [field.session() for _ in range(2)], 0
    for session in sessions:
        worker, graph = field.worker(session), 500
        while instantiate(session, (node() for _ in range(20_000)), graph):
            graph += 1
            expect(graph < 600, "graphs without end")
        graphs += graph - 500
        expect(resident(worker) < LIMIT + OWN, f"{graphs} graphs take {resident(worker) >> 20} MiB")
    # What is destroyed counts no longer.
    for graph in range(500, 500 + graphs):
        sessions[0].post("GraphDestroy", graph=graph)
    expect(instantiate(sessions[1], (node() for _ in range(20_000)), 700), "graphs that are gone still count")
    return graphs


@attack
def graphs_behind_an_endless_kernel(field):
    """A launch of a graph is as much work as it has nodes."""
    session, neighbour = field.session(), field.neighbour()
    worker = field.worker(session)
    field.launch(session, field.kernel(session, ENDLESS))
    expect(instantiate(session, (node() for _ in range(10_000))), "a graph of 10,000 nodes is refused")
    before = resident(worker)
    for _ in range(1_000):
        session.post("GraphLaunch", graph=500, stream=0)
    # The worker holds as many as it takes: they wait in the connection then.
    end, most = time.monotonic() + 3, 0
    while time.monotonic() < end and most < 2 << 30:
        most = max(most, resident(worker) - before)
        neighbour.call("Ping", value=1)
        time.sleep(0.05)
    expect(most < 96 << 20, f"launches of graphs wait in {most >> 20} MiB")
    return 1_000


def launches_wait_within_limit(field, what, nodes_of):
    """Launches of a graph wait, each in a stream of its own, and take no more than the VM's limit. `nodes_of` makes
    its nodes for a session."""
    field.again(*LIMITED)
    session, launches = field.session(), 48
    worker = field.worker(session)
    field.launch(session, field.kernel(session, ENDLESS))
    expect(instantiate(session, nodes_of(session)), f"a graph of {what} is refused")
    session.call("Ping", value=1)
    before, most = resident(worker), 0
    for number in range(launches):
        # A blocking stream: its work waits for the legacy stream's.
        session.post("StreamCreate", stream=1000 + number, flags=0, priority=0)
        session.post("GraphLaunch", graph=500, stream=1000 + number)
    end = time.monotonic() + 4
    while time.monotonic() < end and most < 2 << 30:
        most = max(most, resident(worker) - before)
        time.sleep(0.05)
    expect(most < LIMIT + UNDER_WAY, f"{launches} launches of {what} wait in {most >> 20} MiB")
    return launches


@attack
def dependencies_behind_an_endless_kernel(field):
    """A launch of a graph is more work the more its nodes depend on each other."""

    def nodes_of(_):
        return (node(after=struct.pack(f"<{number}I", *range(number))) for number in range(1500))

    return launches_wait_within_limit(field, "a million dependencies", nodes_of)


@attack
def bodies_behind_an_endless_kernel(field):
    """A launch of a graph is more work the more bodies its nodes choose from."""

    def nodes_of(_):
        work = wire.encode_call("GraphConditional", condition=1, kind=2, value=0, assigns=False, bodies=bytes(4 * 1024))
        return (node(work, wire.NUMBERS["GraphConditional"]) for _ in range(300))

    return launches_wait_within_limit(field, "300 conditional nodes with 300,000 empty bodies", nodes_of)


@attack
def parameters_of_graphs_behind_an_endless_kernel(field):
    """A launch of a graph is more work the larger the parameters of its kernels are."""

    def nodes_of(session):
        big = field.kernel(session, ptx("", ".param .align 4 .b8 p0[32000]"), handle=300)
        launch = dict(grid=(1, 1, 1), block=(1, 1, 1), dynamic_shared=0, flags=0, cluster=(0, 0, 0), preferences=b"")
        work = wire.encode_call("Launch", function=big, stream=0, parameters=bytes(32000), **launch)
        return (node(work, wire.NUMBERS["Launch"]) for _ in range(300))

    return launches_wait_within_limit(field, "300 kernels with 9 MiB of parameters", nodes_of)
