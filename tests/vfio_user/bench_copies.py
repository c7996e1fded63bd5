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

SCRIPT = """
for round in $(seq {rounds}); do
    for direct in true false; do
        printf 'communicator = "pci"\\n[pci]\\ndirect = %s\\n' $direct >/etc/paragpu/guest.toml
        timeout {seconds} /opt/tests/overheads --bulk {bulk} {names} >/tmp/measured || exit
        sed "s/^{{/{{\\"direct\\":$direct,/" /tmp/measured
    done
done
"""


def main():
    """The measurement."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="how often each way is measured (5)")
    parser.add_argument("--bulk", type=int, default=64 << 20, help="bytes of the copies (67108864)")
    parser.add_argument("--output", default=os.path.join(harness.ROOT, "out", "bench-vfio-user.json"), help="where the JSON goes")
    options = parser.parse_args()
    if not os.path.exists(OVERHEADS):
        raise SystemExit(f"{OVERHEADS} is not there: run `make bench-programs` first")
    if not vm.qemu_with_vfio_user():
        raise SystemExit("there is no QEMU with vfio-user-pci: tests/tools/fetch-qemu.sh brings one")
    image = os.path.join(harness.ROOT, "out", "bench-vfio-user.cpio")
    kernel = vm.build_image(image, [(OVERHEADS, "/opt/tests/overheads")])
    samples, said = {}, []

    def take(line):
        entry = json.loads(line) if line.startswith("{") else None
        if entry and "direct" in entry:
            samples.setdefault((entry["name"], entry["direct"]), []).append(entry["value"])
        else:
            said.append(line)

    with harness.Daemon() as daemon, vm.Device(daemon, protocol="vfio-user") as device:
        script = SCRIPT.format(rounds=options.rounds, seconds=200, bulk=options.bulk, names=" ".join(COPIES))
        about = vm.boot(kernel, image, script, take, device=device, timeout=900)
    if about.get("status") != 0:
        raise SystemExit("\n".join(["the VM did not measure:", *said]))

    print(f"{options.bulk >> 20} MiB, {options.rounds} rounds, kernel {about['guest_kernel']}, {about['accel']}")
    print(f"{'':16}{'window':>12}{'direct':>12}   ratio")
    results = []
    for name in COPIES:
        window, direct = (statistics.median(samples[name, way]) for way in (False, True))
        ratio = direct / window
        word = "" if ratio >= PROMISE else f"  missed: {PROMISE} is promised"
        print(f"{name:16}{window / 2**20:12.1f}{direct / 2**20:12.1f}  MiB/s  {ratio:.2f}{word}")
        results.append({"name": name, "unit": "B/s", "window": window, "direct": direct, "ratio": round(ratio, 3)})
    with open(options.output, "w", encoding="utf-8") as file:
        json.dump({"version": 1, **about, "bulk": options.bulk, "promise": PROMISE, "results": results}, file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main()
