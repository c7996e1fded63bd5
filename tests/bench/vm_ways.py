"""Round trips and bulk copies of a program in one VM, over each way to its
host in turn: pci, vsock and tcp. Prints a table and writes out/bench-vm.json.

The ways are measured in one boot, alternating, so that the columns compare;
under TCG the numbers themselves say little.
"""

import argparse
import contextlib
import json
import os
import statistics
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
# pylint: disable=wrong-import-position
import harness
from harness import vm
from measure import OVERHEADS

# What is measured: a query, a launch that is waited for, copies.
ROUND_TRIPS = ("copy64_d2h", "launch_sync")
BULK = ("pageable_h2d", "pageable_d2h", "pinned_h2d", "pinned_d2h")


def main():
    """The measurement."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="how often each way is measured (3)")
    parser.add_argument("--bulk", type=int, default=2 << 20, help="bytes of the bulk copies (2097152)")
    parser.add_argument("--output", default=os.path.join(harness.ROOT, "out", "bench-vm.json"), help="where the JSON goes")
    options = parser.parse_args()

    ways = ["pci", "vsock", "tcp"]
    if not vm.vhost_device_vsock():
        ways.remove("vsock")
        print("vsock is left out: `make vhost-vsock` builds what it needs", file=sys.stderr)
    with contextlib.ExitStack() as stack:
        vsock = stack.enter_context(vm.Vsock()) if "vsock" in ways else None
        listen = [f"--vsock-unix={vsock.listener}"] if vsock else []
        daemon = stack.enter_context(harness.Daemon(*listen))
        device = stack.enter_context(vm.Device(daemon))
        tcp = daemon.addresses["tcp"]
        reached = vm.guest_configuration(vsock, tcp)
        about, samples = vm.measure_in_vm(
            OVERHEADS,
            os.path.join(harness.ROOT, "out", "bench-vm-initramfs.cpio"),
            [(way, f'communicator = "{way}"\n{reached}\n') for way in ways],
            ROUND_TRIPS + BULK,
            rounds=options.rounds,
            bulk=options.bulk,
            device=device,
            vsock=vsock,
            tcp=tcp,
        )

    print(f"{'':16}" + "".join(f"{way:>12}" for way in ways) + f"   kernel {about['guest_kernel']}, {about['accel']}")
    results = []
    for name in ROUND_TRIPS + BULK:
        medians = {way: statistics.median(samples[name, way]) for way in ways}
        bulk = name in BULK
        shown = (f"{medians[way] / 2**20 if bulk else medians[way]:12.1f}" for way in ways)
        print(f"{name:16}" + "".join(shown) + ("  MiB/s" if bulk else "  µs"))
        results.append({"name": name, "unit": "B/s" if bulk else "us", **medians})
    with open(options.output, "w", encoding="utf-8") as file:
        json.dump({"version": 1, **about, "bulk": options.bulk, "results": results}, file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main()
