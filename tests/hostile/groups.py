"""The control groups of VMs; only as root, if the kernel delegates them."""

import contextlib
import os

import harness
import wire
from field import ARENA, CHUNK, SHADOWS, attack, expect, needs, until

ROOT = "/sys/fs/cgroup"
# The daemon's own group, in the one that is delegated to it.
OWN = "paragpud"


def delegated():
    """Whether groups of version 2 with a limit of memory can be made here."""
    try:
        with open(f"{ROOT}/cgroup.subtree_control", encoding="ascii") as file:
            return os.getuid() == 0 and {"memory", "pids"} <= set(file.read().split())
    except OSError:
        return False


def read(*path):
    """The text of a file."""
    with open(os.path.join(*path), encoding="ascii") as file:
        return file.read().strip()


@contextlib.contextmanager
def daemon_in_group(field, *arguments):
    """A daemon as systemd starts it: the group that it may divide."""
    group = f"{ROOT}/paragpu-test-{os.getpid()}"
    os.makedirs(f"{group}/{OWN}")
    real = harness.owned
    enter = f'echo $$ > "{group}/{OWN}/cgroup.procs" && exec "$@"'
    harness.owned = lambda command: real(["sh", "-c", enter, "sh", *command])
    try:
        field.again(*arguments)
        yield group
    finally:
        harness.owned = real
        # The daemon and its workers are in the groups until they end.
        field.again()
        for name in [*(one for one in os.listdir(group) if one.startswith("vm-")), OWN, ""]:
            until("empty", lambda name=name: removed(os.path.join(group, name)))


def removed(group):
    """Removes a group, once nothing is in it."""
    with contextlib.suppress(FileNotFoundError, OSError):
        os.rmdir(group)
    return not os.path.exists(group)


@attack
def memory_that_no_account_covers(field):
    """The workers of a VM that exceeds its group's limit end together, and no other's."""
    needs(delegated(), "root, and control groups of version 2")
    with daemon_in_group(field, "--set=limits.per_vm_host_memory=1GiB", "--set=shm.window=64MiB") as group:
        one, other = field.session(), field.session()
        neighbour = field.neighbour()
        workers = [field.worker(session) for session in (one, other, neighbour)]
        places = [read(f"/proc/{worker}/cgroup").split("::")[1] for worker in workers]
        expect(places[0] == places[1] != places[2], f"the workers of two VMs are in {places}")
        home = ROOT + places[0]
        expect(os.path.dirname(home) == group, f"a worker is in {home}")
        expect(read(home, "memory.oom.group") == "1" and read(home, "pids.max") != "max", "the group has no limits")
        # 64 sessions of 256 MiB and a window, the account, and the GPU's memory.
        expect(64 * (320 << 20) < int(read(home, "memory.max")) < 64 * (320 << 20) + (9 << 30), read(home, "memory.max"))
        with open(f"{home}/memory.max", "w", encoding="ascii") as limit:
            limit.write(str(96 << 20))
        one.call("ShadowCreate", address=SHADOWS, size=192 << 20)
        data = os.urandom(4096) * 60
        with contextlib.suppress(OSError, wire.Failed):
            for at in range(0, (192 << 20) - len(data), len(data)):
                one.post("ShadowWrite", address=SHADOWS + at, data=data)
            one.call("Ping", value=1)
        until("over", lambda: not any(os.path.exists(f"/proc/{worker}") for worker in workers[:2]))
        neighbour.call("MemMap", address=ARENA, size=CHUNK)
        expect(os.path.exists(f"/proc/{workers[2]}"), "the neighbour's worker ended")
        for session in (one, other):
            field.open.remove(session)
            session.close()
        # The VM's group is removed with its last session.
        until("removed", lambda: not os.path.exists(home))
        again = field.session()
        expect(again.call("Ping", value=1)[0] == 1 and os.path.exists(home), "the VM gets no session any more")
    return 3
