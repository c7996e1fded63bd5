"""Time against the number of VMs that share one GPU, beside the same number of
native processes, as rCUDA showed it. Each does the same work, and all begin
together. Writes JSON into a folder, from which page.py draws a page.

With --as vms each is a VM of its own; with --as sessions each is a process of
this host over shared memory, as a VM's worker and the GPU see no difference and
few cores cannot run eight VMs; the default is VMs where there are three cores
for each. On a machine without a GPU the software GPU serves. Native has no
meaning there: the measured times stand beside what sessions one after another
take, and beside the ideal, in which nothing is lost by sharing.
"""

import argparse
import contextlib
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
# pylint: disable=wrong-import-position
import gpu
import measure
from measure import OVERHEADS, harness, say

COUNTS = (1, 2, 4, 8)
CORES_A_VM = 3
# A session gets no less and no more of the time than this part of the mean.
FAIR = (0.8, 1.25)
# Others keep at least this part of their speed beside a guest that writes rubbish.
UNHARMED = 0.9
# Rounds of work of each: about two seconds of one alone.
ROUNDS = {"software": 8, "cuda": 10000}


class Gate:
    """Lets processes that are ready begin together."""

    def __init__(self, count):
        self.count, self.ready, self.lock = count, threading.Barrier(count + 1), threading.Lock()
        self.began = None

    def wait(self):
        """Of one that is ready: returns when all are."""
        self.ready.wait(600)

    def open(self):
        """When all are ready, the moment at which they begin."""
        self.ready.wait(600)
        self.began = time.monotonic()


def work(rounds):
    """The command that does the work."""
    return [OVERHEADS, "--together", "--count", str(rounds), "fixed_work"]


def processes(environment, count, rounds):
    """Seconds of each of so many processes, and of all together."""
    running = [
        subprocess.Popen(work(rounds), env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(count)
    ]
    try:
        # They begin together: else those that make their contexts first work alone for a while.
        if any(process.stdout.readline() != "ready\n" for process in running):
            raise measure.Failed("a process did not get ready")
        began = time.monotonic()
        for process in running:
            process.stdin.write("\n")
            process.stdin.flush()
        outputs = [process.communicate(timeout=900)[0] for process in running]
        took = time.monotonic() - began
    finally:
        for process in running:
            process.kill()
            process.wait()
            process.stdin.close()
            process.stdout.close()
    if any(process.returncode for process in running):
        raise measure.Failed("a process failed")
    return [json.loads(output)["value"] for output in outputs], took


# In a VM: the host says when all are ready. The card is QEMU's, the host 10.0.2.2.
GUEST_SCRIPT = """
printf 'communicator = "pci"\\n' >/etc/paragpu/guest.toml
nc 10.0.2.2 {port} </dev/null | /opt/tests/overheads --together --count {rounds} fixed_work
"""


class Vms:
    """Boots VMs, each with a separate device."""

    def __init__(self, daemon):
        from harness import vm  # pylint: disable=import-outside-toplevel

        self.vm, self.daemon = vm, daemon
        self.image = os.path.join(harness.ROOT, "out", "bench-vms-initramfs.cpio")
        self.kernel = vm.build_image(self.image, [(OVERHEADS, "/opt/tests/overheads")])

    def run(self, count, rounds):
        """Seconds of each of so many VMs, and of all together."""
        gate, values, said, ended = Gate(count), [], [], []
        with contextlib.ExitStack() as stack:
            starter = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=count))
            script = GUEST_SCRIPT.format(port=starter.getsockname()[1], rounds=rounds)

            def boot(device):
                def take(line):
                    if line == "ready":
                        gate.wait()
                    elif line.startswith('{"name":"fixed_work"'):
                        ended.append(time.monotonic())
                        values.append(json.loads(line)["value"])
                    elif line:
                        said.append(line)

                tcp = self.daemon.addresses["tcp"]
                self.vm.boot(self.kernel, self.image, script, take, device=device, tcp=tcp, timeout=900)

            devices = [stack.enter_context(self.vm.Device(self.daemon, f"vm{at + 1}")) for at in range(count)]
            threads = [threading.Thread(target=boot, args=(device,), daemon=True) for device in devices]
            for thread in threads:
                thread.start()
            connected = [stack.enter_context(starter.accept()[0]) for _ in range(count)]
            gate.open()
            for connection in connected:
                connection.sendall(b"\n")
            for thread in threads:
                thread.join(900)
        if len(values) != count:
            raise measure.Failed("\n".join(["a VM did not measure:", *said[-20:]]))
        return values, max(ended) - gate.began


def of_rounds(measured, repeats):
    """The run with the median time of several, and what each of it took."""
    runs = sorted((measured() for _ in range(repeats)), key=lambda run: run[1])
    return runs[len(runs) // 2]


def spread(seconds):
    """The speeds of the slowest and the fastest, as parts of the mean speed."""
    speeds = [1 / value for value in seconds]
    mean = statistics.mean(speeds)
    return min(speeds) / mean, max(speeds) / mean


class Hypervisor:
    """A hypervisor whose guest writes rubbish into registers and window of its
    device as fast as it can, or, for comparison, only burns its core."""

    CODE = """
import array, mmap, os, socket, sys
path, harm = sys.argv[1], sys.argv[2] == "rubbish"
server = socket.socket(socket.AF_UNIX)
server.connect(path)
def message():
    data, passed, _, _ = server.recvmsg(8, socket.CMSG_SPACE(4))
    fds = array.array("i")
    for level, kind, bytes_ in passed:
        fds.frombytes(bytes_[:4])
    return int.from_bytes(data, "little", signed=True), fds[0] if fds else None
message()
own = message()[0]
window = message()[1]
doorbells, number = [], -1
while number != own:
    number, fd = message()
    if number != own:
        doorbells.append(fd)
memory = mmap.mmap(window, 0)
print("ready", flush=True)
rubbish = os.urandom(1 << 16)
one, at, size = (1).to_bytes(8, "little"), 0, len(memory)
for fd in doorbells:
    os.set_blocking(fd, False)
while True:
    if not harm:
        at = (at + 1) % size
        continue
    # Header and states of the device first, then everywhere.
    memory[:8192] = rubbish[at % 4096 : at % 4096 + 8192]
    at = (at + len(rubbish)) % (size - len(rubbish))
    memory[at : at + len(rubbish)] = rubbish
    for fd in doorbells:
        try:
            os.write(fd, one)
        except BlockingIOError:
            pass
"""

    def __init__(self, device, harm):
        command = [sys.executable, "-c", self.CODE, device.socket, "rubbish" if harm else "spin"]
        self.process = subprocess.Popen(harness.owned(command), stdout=subprocess.PIPE, text=True)
        if self.process.stdout.readline() != "ready\n":
            raise measure.Failed("the guest that writes rubbish did not start")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.process.stdout.close()


def rubbish(daemon, rounds, repeats):
    """Speed of a session beside a guest that writes rubbish, as a part of its speed
    beside one that uses its core and leaves its device alone."""
    from harness import vm  # pylint: disable=import-outside-toplevel

    environment = daemon.guest_environment("shm")
    rates = {False: [], True: []}
    with vm.Device(daemon, "rubbish", ["--window-size=256M"]) as device:
        for at in range(repeats):
            for harm in (False, True):
                say(f"a session beside a guest that {'writes rubbish' if harm else 'spins'}, {at + 1} of {repeats}")
                command = [OVERHEADS, "--count", str(rounds), "fixed_work"]
                with Hypervisor(device, harm):
                    rates[harm].append(rounds / measure.lines_of(command, environment)["fixed_work"])
    return statistics.median(rates[True]), statistics.median(rates[False])


def main():
    """The benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--as", dest="what", choices=("vms", "sessions"), help="what runs at once (default: as the cores allow)")
    parser.add_argument("--counts", type=lambda text: [int(word) for word in text.split(",")], default=list(COUNTS), help="how many at once (1,2,4,8)")
    parser.add_argument("--rounds", type=int, default=3, help="runs of which the median counts (3)")
    parser.add_argument("--work", type=int, help="kernels of each (default: about two seconds of one alone)")
    parser.add_argument("folder", nargs="?", default=os.path.join(harness.ROOT, "out/bench-vms"), help="where results go")
    options = parser.parse_args()
    cores = os.cpu_count()
    what = options.what or ("vms" if cores >= CORES_A_VM * max(options.counts) else "sessions")
    load = os.getloadavg()[0]
    if load > 0.5:
        say(f"other programs use this machine (load {load:.1f}): the figures say little")
    try:
        device = gpu.probe()
        native, kind, about = gpu.native_environment(), "cuda", f"{device['name']}, driver {device['driver']}"
    except gpu.NoGpu as why:
        say(f"{why}: the software GPU serves, and native has no meaning")
        native, kind, about = None, "software", "software GPU"
    rounds = options.work or ROUNDS[kind]
    rows, failures = [], []
    with harness.Daemon("--warm", str(max(options.counts)), device=kind) as daemon:
        environment = daemon.guest_environment("shm")
        machines = Vms(daemon) if what == "vms" else None

        def warm():
            gpu.await_warm(daemon, max(options.counts))

        def shared(count):
            warm()
            return machines.run(count, rounds) if machines else processes(environment, count, rounds)

        def one_after_another(count):
            return [], sum(shared(1)[1] for _ in range(count))

        for count in options.counts:
            try:
                say(f"{count} {what} at once")
                values, took = of_rounds(lambda: shared(count), options.rounds)  # noqa: B023
                say(f"{count} {what} one after another")
                _, in_turn = of_rounds(lambda: one_after_another(count), 1)  # noqa: B023
                alone = None
                if native:
                    say(f"{count} native processes")
                    _, alone = of_rounds(lambda: processes(native, count, rounds), options.rounds)  # noqa: B023
                rows.append([count, took, in_turn, alone, *spread(values)])
            except measure.Failed as failure:
                failures.append(f"{count} {what}: {failure}")
                say(failures[-1])
        beside = None
        try:
            warm()
            beside = rubbish(daemon, rounds, options.rounds)
        except (measure.Failed, RuntimeError) as failure:
            failures.append(f"a session beside rubbish: {failure}")
            say(failures[-1])
    return conclude(options, what, kind, f"{about}; {measure.machine()}; load before {load:.1f}", rows, beside, failures)


def conclude(options, what, kind, about, rows, beside, failures):
    """Files, table and exit status."""
    first = rows[0] if rows else None
    head = ["count", f"{what} s", "one after another s", "native s", "ideal s", "slowest of mean", "fastest of mean"]
    # The work of one keeps the whole GPU busy, be it the cores: so many take so many times as long.
    ideal = {row[0]: first[1] / first[0] * row[0] for row in rows}
    table = [[*row[:4], ideal[row[0]], *row[4:]] for row in rows]
    series = {what: 1, "one after another": 2, "native": 3, "ideal": 4}
    series = {name: [(row[0], row[at]) for row in table if row[at]] for name, at in series.items()}
    plots = [measure.lines("Time against the number at once", f"{what} at once", "seconds until all are done", series)]
    if kind == "software":
        sentence = (
            "There is no GPU in this machine, and the software GPU served; native processes have no meaning there. Compare the "
            "curve with the same sessions run one after another, and with the ideal: one session keeps all cores busy, so that N take N times as long."
        )
    else:
        sentence = "Native processes use NVIDIA's own runtime on the same GPU. Ideal: N take N times as long as one, which keeps the GPU busy."
    command = f"make bench-vms, {what} over {'the PCI device of each' if what == 'vms' else 'shared memory'}"
    title = "Time against the number of VMs"
    entries = []
    for row in rows:
        if row[0] == max(options.counts) and row[0] > 1:
            note = "speed of each as a part of the mean of all"
            entries.append(measure.result(f"fair_slowest_{row[0]}", "1", row[4], 1.0, FAIR[0], most=False, note=note))
            entries.append(measure.result(f"fair_fastest_{row[0]}", "1", row[5], 1.0, FAIR[1], most=True, note=note))
    if beside:
        note = "kernels a second of a session; the baseline is beside a guest that burns its core and leaves its device alone"
        entries.append(measure.result("beside_rubbish", "1/s", beside[0], beside[1], UNHARMED, most=False, note=note))
    tables = [{"title": title, "head": head, "rows": table}]
    data = measure.described(title, about, command, sentence, what=what, **measure.of_results(entries), plots=plots, tables=tables)
    path = os.path.join(options.folder, "bench-vms.json")
    measure.store(path, {**data, "not_measured": failures})
    print("  ".join(f"{word:>20}" for word in head))
    for row in table:
        print("  ".join(f"{measure.short(cell):>20}" for cell in row))
    status = measure.conclude(entries, failures)
    print(f"written to {os.path.relpath(path)}")
    return status


if __name__ == "__main__":
    sys.exit(main())
