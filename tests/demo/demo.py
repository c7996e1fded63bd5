"""Runs every test program in one VM over the PCI device, vsock and TCP, chosen
in its configuration file, and on the host over shared memory, unix sockets and
TCP; moves the virtual GPU of a program that runs in the VM from a second daemon
to the first, and from TCP to the PCI device; prints one table and writes
out/demo.json.

Ends with 1 if any result is wrong, or the migration.
"""

import argparse
import contextlib
import json
import os
import signal
import sys
import tempfile

from tqdm import tqdm

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
# pylint: disable=wrong-import-position
import harness
import moving
from harness import vm

# Negative tests and tools among the programs: not part of the demonstration.
NOT_SHOWN = ("errors",)


class Progress:
    """A bar on a terminal; lines alone elsewhere."""

    def __init__(self, total):
        self.live = sys.stderr.isatty()
        self.bar = tqdm(total=total, disable=not self.live, unit="run", file=sys.stderr)

    def step(self, what):
        """Prints the current step."""
        if self.live:
            self.bar.set_description(what)
        else:
            self.said(what)

    def running(self, what):
        """Shows, on a terminal, the run that began."""
        self.bar.set_description(what)

    def finished(self, record):
        """Counts one run."""
        self.bar.update()
        word = "ok" if record["ok"] else "FAILED"
        line = f"{record['program']} over {record['communicator']} ({record['where']}): {word}, {record['seconds']:.2f} s"
        if self.live and record["ok"]:
            self.bar.set_description(line)
        else:
            self.said(line)

    def said(self, line):
        """Prints a line beside the bar."""
        tqdm.write(line, file=sys.stderr)
        sys.stderr.flush()

    def end(self):
        """Removes the bar."""
        self.bar.leave = False
        self.bar.close()


def table(runs):
    """One row per program, one column per communicator."""
    ways = []
    for run in runs:
        way = (run["where"], run["communicator"])
        if way not in ways:
            ways.append(way)
    by_program = {}
    for run in runs:
        by_program.setdefault(run["program"], {})[run["where"], run["communicator"]] = run
    lines = [f"{'program':22}" + "".join(f"{where + ' ' + name:>14}" for where, name in ways) + f"{'calls':>9}{'waited for':>12}"]
    for program, cells in sorted(by_program.items(), key=lambda item: item[0].lower()):
        line = f"{program:22}"
        for way in ways:
            run = cells.get(way)
            line += f"{'-' if run is None else ('%.2f s' % run['seconds']) if run['ok'] else 'FAILED':>14}"
        any_run = next(iter(cells.values()))
        lines.append(line + f"{any_run['calls']:>9}{any_run['synchronous']:>12}")
    return "\n".join(lines)


def main():
    """The demonstration."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto", help="auto, cuda or software (default: what the machine has)")
    parser.add_argument("--output", default=os.path.join(harness.ROOT, "out", "demo.json"), help="where the JSON goes")
    parser.add_argument("--where", choices=("vm", "host", "all"), default="all", help="only the runs there (default: all)")
    parser.add_argument("programs", nargs="*", help="only these programs")
    options = parser.parse_args()
    # Being ended runs the same cleaning up as Ctrl-C, which a shell's background
    # jobs are born ignoring.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    programs = options.programs or [name for name in harness.program_names() if name not in NOT_SHOWN]

    in_vm = [] if options.where == "host" else ["pci", "vsock", "tcp"]
    on_host = [] if options.where == "vm" else list(harness.HOST_COMMUNICATORS)
    runs, migrations, messages, about, problems = [], [], [], {}, []
    if in_vm and not vm.vhost_device_vsock():
        in_vm.remove("vsock")
        messages.append("vsock in the VM was left out: vhost-device-vsock is not there (`make vhost-vsock` builds it)")
    ways = [("host", name) for name in on_host] + [("vm", name) for name in in_vm]
    progress = Progress(len(ways) * len(programs))
    os.makedirs(os.path.dirname(options.output), exist_ok=True)
    log, away_log = (
        os.path.join(os.path.dirname(options.output), f"demo-{name}.log") for name in ("daemon", "daemon-away")
    )
    for old in (log, away_log):
        if os.path.exists(old):
            os.remove(old)
    left = []
    with contextlib.ExitStack() as stack:
        vsock = stack.enter_context(vm.Vsock()) if "vsock" in in_vm else None
        trust = harness.certificates(stack.enter_context(tempfile.TemporaryDirectory(prefix="paragpu-trust-")))
        listen = [f"--vsock-unix={vsock.listener}"] if vsock else []
        daemon = stack.enter_context(harness.Daemon(*harness.as_host(trust), *listen, device=options.device, log=log))
        if in_vm:
            progress.step("building the VM's image")
            initramfs = os.path.join(harness.ROOT, "out", "demo-initramfs.cpio")
            kernel = vm.build_image(initramfs)
            progress.step("booting the VM")
            away = stack.enter_context(
                harness.Daemon(*harness.as_host(trust, listen=False), device=options.device, log=away_log)
            )
            home = moving.Moving(away, daemon)
            with vm.Device(daemon) as device:
                about, runs, said = vm.run_programs(
                    kernel,
                    initramfs,
                    programs,
                    progress.finished,
                    communicators=in_vm,
                    device=device,
                    vsock=vsock,
                    tcp=daemon.addresses["tcp"],
                    then=home.script(),
                    on_then=home.take,
                )
            messages += said
            migrations, problems = home.finish()
            for line in (*moving.lines(migrations), *problems):
                progress.said(line)
            left = away.left()
        for communicator in on_host:
            for program in programs:
                progress.running(f"{program} over {communicator}")
                run = daemon.run(program, communicator)
                record = run.record(communicator, "host")
                runs.append(record)
                progress.finished(record)
                if not run.ok:
                    messages.append(f"{program} over {communicator}: {run.output}{run.errors}".strip())
        left += daemon.left()
        device_name = ", ".join(daemon.devices())
    progress.end()

    missing = [
        f"{program} never ran over {name} ({where})"
        for where, name in sorted(ways)
        for program in programs
        if not any((r["program"], r["where"], r["communicator"]) == (program, where, name) for r in runs)
    ]
    result = {
        "version": 1,
        "qemu": about.get("qemu"),
        "accel": about.get("accel"),
        "guest_kernel": about.get("guest_kernel"),
        "device": device_name,
        "runs": runs,
        "migrations": migrations,
    }
    with open(options.output, "w", encoding="utf-8") as file:
        json.dump(result, file, indent=1)
        file.write("\n")
    print(table(runs))
    for line in moving.lines(migrations):
        print(line)
    for message in messages + missing + problems:
        print(message, file=sys.stderr)
    if left:
        print(f"sessions left behind: {left}", file=sys.stderr)
    wrong = [run for run in runs if not run["ok"]]
    good = len(runs) - len(wrong)
    print(f"{good} of {len(runs)} runs right on {device_name}; written to {os.path.relpath(options.output)}")
    return 1 if wrong or missing or problems or left else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        sys.exit(130)
