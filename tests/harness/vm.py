"""A VM with the paragpu device, on stock QEMU."""

import json
import os
import signal
import subprocess
import tempfile
import time

from . import BINARIES, COUNTERS, LIBRARIES, PROGRAMS, ROOT, binary, owned

CACHE = os.path.join(ROOT, ".cache")
IMAGES = os.path.join(ROOT, "vm-images")


def build_image(output):
    """Builds kernel module and initramfs; returns the kernel's folder."""
    fetched = subprocess.check_output([os.path.join(IMAGES, "fetch-kernel.sh"), CACHE], text=True)
    release = fetched.split()[-1]
    kernel = os.path.join(CACHE, "kernel", release)
    module = os.path.join(ROOT, "out", "module", release)
    headers = os.path.join(kernel, "headers")
    subprocess.run(
        ["make", "-s", "-C", os.path.join(ROOT, "kernel-module"), f"KDIR={headers}", f"OUT={module}"],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    subprocess.run(
        [
            os.path.join(IMAGES, "make-initramfs.sh"),
            *("--kernel", kernel),
            *("--output", output),
            *("--module", os.path.join(module, "paragpu.ko")),
            *("--programs", PROGRAMS),
            *("--libraries", LIBRARIES),
            *("--file", f"{binary('paragpu')}=/usr/bin/paragpu"),
        ],
        check=True,
    )
    return kernel


class Device:
    """The device process of one VM."""

    def __init__(self, daemon, vm="demo", arguments=()):
        self.folder = tempfile.TemporaryDirectory(prefix="paragpu-vm-")
        self.socket = os.path.join(self.folder.name, "device.sock")
        self.process = subprocess.Popen(
            owned(
                [
                    os.path.join(BINARIES, "paragpu-qemu-device"),
                    f"--socket={self.socket}",
                    f"--vm={vm}",
                    f"--daemon={daemon.socket}",
                    *arguments,
                ]
            ),
            env=dict(os.environ, PARAGPU_LOG="warn"),
        )
        while not os.path.exists(self.socket):
            if self.process.poll() is not None:
                raise RuntimeError(f"paragpu-qemu-device ended with {self.process.returncode}")
            time.sleep(0.01)

    def stop(self):
        """Ends the device process."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(20)
        self.folder.cleanup()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()


# Runs each program with the counters of its own; one JSON line each.
GUEST_SCRIPT = """
failed=0
for program in {programs}; do
    rm -f /tmp/stats.jsonl
    begin=$(cut -d' ' -f1 /proc/uptime)
    PARAGPU_COMMUNICATOR={communicator} PARAGPU_STATS_FILE=/tmp/stats.jsonl \\
        timeout {seconds} /opt/paragpu/programs/$program >/tmp/output 2>&1
    code=$?
    end=$(cut -d' ' -f1 /proc/uptime)
    [ $code = 0 ] || {{ failed=1; sed "s/^/$program: /" /tmp/output; }}
    echo "{{\\"program\\":\\"$program\\",\\"code\\":$code,\\"begin\\":$begin,\\"end\\":$end}}"
    [ ! -e /tmp/stats.jsonl ] || sed "s/^{{/{{\\"of\\":\\"$program\\",/" /tmp/stats.jsonl
done
exit $failed
"""


def run_programs(kernel, initramfs, device, programs, on_line, communicator="pci", seconds=120, timeout=900):
    """Runs programs in a VM; `on_line` sees each finished one as it comes.

    Returns the VM's description and the programs' entries for demo.json.
    """
    with tempfile.TemporaryDirectory(prefix="paragpu-boot-") as folder:
        commands = os.path.join(folder, "commands")
        with open(commands, "w", encoding="utf-8") as script:
            names = " ".join(programs)
            script.write(GUEST_SCRIPT.format(programs=names, communicator=communicator, seconds=seconds))
        boot = subprocess.Popen(
            owned(
                [
                    os.path.join(IMAGES, "run-vm.sh"),
                    *("--kernel", kernel),
                    *("--initramfs", initramfs),
                    *("--commands", commands),
                    *("--out", os.path.join(folder, "vm")),
                    *("--device", device.socket),
                    *("--memory", "2G"),
                    *("--timeout", str(timeout)),
                ]
            ),
            stdout=subprocess.PIPE,
            text=True,
            errors="replace",
        )
        runs, messages = {}, []
        try:
            for line in boot.stdout:
                line = line.strip()
                try:
                    entry = json.loads(line) if line.startswith("{") else None
                except ValueError:
                    entry = None
                if entry and "program" in entry:
                    record = {
                        "program": entry["program"],
                        "communicator": communicator,
                        "where": "vm",
                        "ok": entry["code"] == 0,
                        "seconds": round(entry["end"] - entry["begin"], 3),
                        **dict.fromkeys(COUNTERS, 0),
                    }
                    runs[entry["program"]] = record
                    on_line(record)
                elif entry and "of" in entry:
                    for name in COUNTERS:
                        runs[entry["of"]][name] += entry[name]
                elif line:
                    messages.append(line)
            boot.wait(60)
        finally:
            if boot.poll() is None:
                boot.terminate()
                boot.wait(20)
            boot.stdout.close()
        about = {}
        described = os.path.join(folder, "vm", "vm.json")
        if os.path.exists(described):
            with open(described, encoding="utf-8") as file:
                about = json.load(file)
        else:
            messages.append("the VM did not boot")
        return about, list(runs.values()), messages
