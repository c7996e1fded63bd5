"""Copies of pageable memory in one VM over vfio-user: through the device's
window, and by the host straight from and to the VM's memory. Prints a table
and writes out/bench-vfio-user.json.

Both ways are measured in one boot, alternating; under TCG the ratio counts,
the numbers themselves say little.
"""

import argparse
import json
import os
import statistics
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
# pylint: disable=wrong-import-position
import harness
from harness import vm

OVERHEADS = os.path.join(harness.ROOT, "out", "bench", "overheads")
COPIES = ("pageable_h2d", "pageable_d2h")
# What is promised: direct over window.
PROMISE = 1.5


def main():
    """The measurement."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="how often each way is measured (5)")
    parser.add_argument("--bulk", type=int, default=64 << 20, help="bytes of the copies (67108864)")
    parser.add_argument("--output", default=os.path.join(harness.ROOT, "out", "bench-vfio-user.json"), help="where the JSON goes")
    options = parser.parse_args()
    if not vm.qemu_with_vfio_user():
        raise SystemExit("there is no QEMU with vfio-user-pci: tests/tools/fetch-qemu.sh brings one")
    direct = 'communicator = "pci"\n[pci]\ndirect = {}\n'
    with harness.Daemon() as daemon, vm.Device(daemon, protocol="vfio-user") as device:
        about, samples = vm.measure_in_vm(
            OVERHEADS,
            os.path.join(harness.ROOT, "out", "bench-vfio-user.cpio"),
            [("direct", direct.format("true")), ("window", direct.format("false"))],
            COPIES,
            rounds=options.rounds,
            bulk=options.bulk,
            device=device,
        )

    print(f"{options.bulk >> 20} MiB, {options.rounds} rounds, kernel {about['guest_kernel']}, {about['accel']}")
    print(f"{'':16}{'window':>12}{'direct':>12}   ratio")
    results = []
    for name in COPIES:
        window, direct = (statistics.median(samples[name, way]) for way in ("window", "direct"))
        ratio = direct / window
        word = "" if ratio >= PROMISE else f"  missed: {PROMISE} is promised"
        print(f"{name:16}{window / 2**20:12.1f}{direct / 2**20:12.1f}  MiB/s  {ratio:.2f}{word}")
        results.append({"name": name, "unit": "B/s", "window": window, "direct": direct, "ratio": round(ratio, 3)})
    with open(options.output, "w", encoding="utf-8") as file:
        json.dump({"version": 1, **about, "bulk": options.bulk, "promise": PROMISE, "results": results}, file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main()
