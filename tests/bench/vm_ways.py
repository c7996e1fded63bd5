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

SCRIPT = """
for round in $(seq {rounds}); do
    for communicator in {ways}; do
        printf 'communicator = "%s"\\n{configuration}\\n' $communicator >/etc/paragpu/guest.toml
        timeout {seconds} /opt/tests/overheads --bulk {bulk} {names} >/tmp/measured || exit
        sed "s/^{{/{{\\"over\\":\\"$communicator\\",/" /tmp/measured
    done
done
"""


def main():
    """The measurement."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="how often each way is measured (3)")
    parser.add_argument("--bulk", type=int, default=2 << 20, help="bytes of the bulk copies (2097152)")
    parser.add_argument("--output", default=os.path.join(harness.ROOT, "out", "bench-vm.json"), help="where the JSON goes")
    options = parser.parse_args()
    if not os.path.exists(OVERHEADS):
        raise SystemExit(f"{OVERHEADS} is not there: run `make bench-programs` first")

    ways = ["pci", "vsock", "tcp"]
    if not vm.vhost_device_vsock():
        ways.remove("vsock")
        print("vsock is left out: `make vhost-vsock` builds what it needs", file=sys.stderr)
    image = os.path.join(harness.ROOT, "out", "bench-vm-initramfs.cpio")
    kernel = vm.build_image(image, [(OVERHEADS, "/opt/tests/overheads")])
    samples, said = {}, []

    def take(line):
        entry = json.loads(line) if line.startswith("{") else None
        if entry and "over" in entry:
            samples.setdefault((entry["name"], entry["over"]), []).append(entry["value"])
        else:
            said.append(line)

    with contextlib.ExitStack() as stack:
        vsock = stack.enter_context(vm.Vsock()) if "vsock" in ways else None
        listen = [f"--vsock-unix={vsock.listener}"] if vsock else []
        daemon = stack.enter_context(harness.Daemon(*listen))
        device = stack.enter_context(vm.Device(daemon))
        tcp = daemon.addresses["tcp"]
        script = SCRIPT.format(
            rounds=options.rounds,
            ways=" ".join(ways),
            configuration=vm.guest_configuration(vsock, tcp).replace("\n", "\\n"),
            seconds=200,
            bulk=options.bulk,
            names=" ".join(ROUND_TRIPS + BULK),
        )
        about = vm.boot(kernel, image, script, take, device=device, vsock=vsock, tcp=tcp, timeout=900)
    if about.get("status") != 0:
        raise SystemExit("\n".join(["the VM did not measure:", *said]))

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
