"""A VM with the paragpu device, vsock and a network card, on stock QEMU."""

import glob
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time

from . import BINARIES, COUNTERS, LIBRARIES, PATIENCE, PROGRAMS, ROOT, binary, owned

CACHE = os.path.join(ROOT, ".cache")
IMAGES = os.path.join(ROOT, "vm-images")


# Port of the daemon as VMs see it over vsock.
VSOCK_PORT = 7014

# What build_image needs for a VM that shares files of this machine: Debian's cloud
# kernel has no 9p.
SHARING = {"flavour": "amd64", "drivers": "virtio_pci virtio_net 9pnet_virtio 9p overlay"}


def build_image(output, files=(), flavour="cloud-amd64", drivers=None, programs=True):
    """Builds kernel module and initramfs for a flavour of Debian's kernel; returns the
    kernel's folder. `drivers` are other modules of the kernel than the usual ones."""
    fetched = subprocess.check_output([os.path.join(IMAGES, "fetch-kernel.sh"), CACHE, flavour], text=True)
    release = fetched.split()[-1]
    kernel = os.path.join(CACHE, "kernel", release)
    module = os.path.join(ROOT, "out", "module", release)
    headers = os.path.join(kernel, "headers")
    subprocess.run(
        ["make", "-s", "-C", os.path.join(ROOT, "kernel-module"), f"KDIR={headers}", f"OUT={module}"],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    options = ["--module", os.path.join(module, "paragpu.ko"), *(("--drivers", drivers) if drivers else ())]
    pack_image(output, kernel, options, files, programs)
    return kernel


def pack_image(output, kernel, options=(), files=(), programs=True):
    """Makes the initramfs for a kernel's folder; `files` are pairs of source and place.
    Without `programs` it has none of ours, and no libraries."""
    placed = [f"{source}={place}" for source, place in files]
    content = []
    if programs:
        placed.insert(0, f"{binary('paragpu')}=/usr/bin/paragpu")
        content = ["--programs", PROGRAMS, "--libraries", LIBRARIES]
    subprocess.run(
        [
            os.path.join(IMAGES, "make-initramfs.sh"),
            *("--kernel", kernel),
            *("--output", output),
            *content,
            *(argument for file in placed for argument in ("--file", file)),
            *options,
        ],
        check=True,
    )


def newer_kernel():
    """Folder of Debian 13's kernel and its paragpu.ko, as
    kernel-module/build-against-trixie.sh left them; or None."""
    root = os.path.join(CACHE, "trixie-build")
    found = glob.glob(os.path.join(root, "boot", "vmlinuz-*-cloud-amd64"))
    for vmlinuz in sorted(found, reverse=True):
        release = os.path.basename(vmlinuz).removeprefix("vmlinuz-")
        module = os.path.join(CACHE, "module", release, "paragpu.ko")
        modules = os.path.join(root, "usr", "lib", "modules", release)
        if not os.path.exists(module) or not os.path.exists(modules):
            continue
        kernel = os.path.join(CACHE, "kernel", release)
        os.makedirs(os.path.join(kernel, "lib", "modules"), exist_ok=True)
        for link, target in (("vmlinuz", vmlinuz), (f"lib/modules/{release}", modules)):
            if not os.path.exists(os.path.join(kernel, link)):
                os.symlink(target, os.path.join(kernel, link))
        return kernel, module
    return None


def vhost_device_vsock():
    """Path of the vhost-user daemon for vsock, or None."""
    built = os.path.join(CACHE, "tools", "bin", "vhost-device-vsock")
    return built if os.path.exists(built) else shutil.which("vhost-device-vsock")


def listens(path):
    """Whether a unix socket at this path accepts connections: a bound one does not yet."""
    with open("/proc/net/unix", encoding="utf-8") as sockets:
        rows = [row.split() for row in sockets]
    # Its flags are __SO_ACCEPTCON then.
    return any(row[-1] == path and row[3] == "00010000" for row in rows)


class Device:
    """The device process of one VM."""

    def __init__(self, daemon, vm="demo", arguments=(), protocol="ivshmem", log=None):
        """Its output is written to the file `log`, or to this process's standard error."""
        self.protocol, self.log = protocol, log
        self.folder = tempfile.TemporaryDirectory(prefix="paragpu-vm-")
        self.socket = os.path.join(self.folder.name, "device.sock")
        # pylint: disable-next=consider-using-with
        errors = open(log, "wb") if log else None
        self.process = subprocess.Popen(
            owned(
                [
                    os.path.join(BINARIES, "paragpu-qemu-device"),
                    f"--socket={self.socket}",
                    f"--vm={vm}",
                    f"--daemon={daemon.socket}",
                    f"--protocol={protocol}",
                    *arguments,
                ]
            ),
            env=dict(os.environ, PARAGPU_LOG="warn"),
            stderr=errors,
        )
        if errors:
            errors.close()
        while not listens(self.socket):
            if self.process.poll() is not None:
                raise RuntimeError(f"paragpu-qemu-device ended with {self.process.returncode}")
            time.sleep(0.01)

    def stop(self):
        """Ends the device process."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(PATIENCE)
        self.folder.cleanup()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()


def qemu_with_vfio_user():
    """Path of a QEMU with vfio-user-pci, or None."""
    fetched = os.path.join(CACHE, "qemu-vfio-user")
    return fetched if os.path.exists(fetched) else None


def option_of(device):
    """The options of run-vm.sh for a Device."""
    return ("--vfio-user" if device.protocol == "vfio-user" else "--device", device.socket)


def environment_of(device):
    """In which run-vm.sh finds a QEMU that has the Device's kind."""
    newer = qemu_with_vfio_user() if device and device.protocol == "vfio-user" else None
    return dict(os.environ, PARAGPU_QEMU=newer) if newer else None


class Vsock:
    """The vsock of one VM, through vhost-device-vsock. The daemon listens at `listener`."""

    def __init__(self, name="demo", cid=3):
        self.folder = tempfile.TemporaryDirectory(prefix="paragpu-vsock-")
        self.socket = os.path.join(self.folder.name, "vhost.sock")
        self.end = os.path.join(self.folder.name, f"{name}.vsock")
        self.listener = f"{self.end}_{VSOCK_PORT}"
        self.log_path = os.path.join(self.folder.name, "log")
        self.cid, self.process = cid, None

    def start(self):
        """Starts the vhost-user daemon; returns when QEMU can connect."""
        command = [
            vhost_device_vsock(),
            f"--guest-cid={self.cid}",
            f"--socket={self.socket}",
            f"--uds-path={self.end}",
        ]
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(owned(command), stdout=log, stderr=log)
        while not listens(self.socket):
            if self.process.poll() is not None:
                with open(self.log_path, encoding="utf-8", errors="replace") as log:
                    raise RuntimeError(f"vhost-device-vsock ended with {self.process.returncode}: {log.read()}")
            time.sleep(0.01)

    def stop(self):
        """Ends the vhost-user daemon."""
        if self.process:
            self.process.terminate()
            self.process.wait(PATIENCE)
        self.folder.cleanup()

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.stop()


# Makes this machine's files the VM's, below /machine. What the VM writes stays in its
# memory. 9p's loose cache keeps what was read, and lets libraries be mapped.
SHARED_FILES = """
modprobe -a 9p overlay
mkdir -p /shared /written /machine
mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000,cache=loose,ro shared /shared || exit 126
mount -t tmpfs tmpfs /written
mkdir /written/files /written/work
mount -t overlay -o lowerdir=/shared,upperdir=/written/files,workdir=/written/work overlay /machine || exit 126
for folder in proc sys dev dev/shm; do
    mount --bind /$folder /machine/$folder || exit 126
done
"""


def sharing(folder="/"):
    """QEMU's options for a VM that shares a folder's files, which it cannot change."""
    # Several file systems may use one inode number.
    backend = f"local,id=shared,path={folder},security_model=none,readonly=on,multidevs=remap"
    return ["-fsdev", backend, "-device", "virtio-9p-pci,fsdev=shared,mount_tag=shared"]


# For each communicator, rewrites the configuration and runs each program
# with the counters of its own; one JSON line each. Commands of the shell alone
# around a program: without KVM each process costs as much as a small program.
GUEST_SCRIPT = """
failed=0
for communicator in {communicators}; do
    cat >/etc/paragpu/guest.toml <<END
communicator = "$communicator"
{configuration}
END
    for program in {programs}; do
        : >/tmp/stats.jsonl
        read -r begin _ </proc/uptime
        PARAGPU_STATS_FILE=/tmp/stats.jsonl \\
            timeout {seconds} /opt/paragpu/programs/$program >/tmp/output 2>&1
        code=$?
        read -r end _ </proc/uptime
        [ $code = 0 ] || {{ failed=1; sed "s/^/$program over $communicator in the VM: /" /tmp/output; }}
        run="\\"of\\":\\"$program\\",\\"over\\":\\"$communicator\\""
        echo "{{$run,\\"code\\":$code,\\"begin\\":$begin,\\"end\\":$end}}"
        while read -r line; do
            echo "{{$run,${{line#?}}"
        done </tmp/stats.jsonl
    done
done
{then}
exit $failed
"""


def guest_configuration(vsock=None, tcp=None):
    """The settings of guest.toml for reaching the daemon, besides `communicator`."""
    lines = []
    if vsock:
        lines += ["[vsock]", f"port = {VSOCK_PORT}"]
    if tcp:
        # The host as QEMU's user networking shows it.
        lines += ["[tcp]", f'address = "10.0.2.2:{tcp.rsplit(":", 1)[1]}"']
    return "\n".join(lines)


def run_programs(
    kernel,
    initramfs,
    programs,
    on_line,
    *,
    communicators=("pci",),
    device=None,
    vsock=None,
    tcp=None,
    seconds=120,
    timeout=900,
    then="",
    on_then=lambda entry: None,
):
    """Runs programs in one VM, over one communicator after the other, which it
    chooses in guest.toml; `on_line` sees each finished run as it comes. `then`
    is a shell script that follows, and `on_then` sees what it prints as JSON.

    `device` is the VM's Device, `vsock` its Vsock, `tcp` the address at which
    the daemon listens on this host.

    Returns the VM's description, the runs' entries for demo.json, and what
    else the VM printed.
    """
    script = GUEST_SCRIPT.format(
        programs=" ".join(programs),
        communicators=" ".join(communicators),
        configuration=guest_configuration(vsock, tcp),
        seconds=seconds,
        then=then,
    )
    runs, messages = {}, []

    def take(line):
        try:
            entry = json.loads(line) if line.startswith("{") else {}
        except ValueError:
            entry = {}
        run = entry.get("of"), entry.get("over")
        if "code" in entry and "of" in entry:
            runs[run] = {
                "program": entry["of"],
                "communicator": entry["over"],
                "where": "vm",
                "ok": entry["code"] == 0,
                "seconds": round(entry["end"] - entry["begin"], 3),
                **dict.fromkeys(COUNTERS, 0),
            }
            on_line(runs[run])
        elif run in runs:
            for name in COUNTERS:
                runs[run][name] += entry[name]
        elif entry:
            on_then(entry)
        elif line:
            messages.append(line)

    about = boot(kernel, initramfs, script, take, device=device, vsock=vsock, tcp=tcp, timeout=timeout)
    if not about:
        messages.append("the VM did not boot")
    return about, list(runs.values()), messages


# Runs the benchmark with each setting of guest.toml in turn, in each round; its lines of
# JSON get the setting's name.
MEASURING_SCRIPT = """
for round in $(seq {rounds}); do
    {runs}
done
"""
MEASURED_RUN = """
    printf '%s' '{configuration}' >/etc/paragpu/guest.toml
    timeout 200 /opt/tests/overheads --bulk {bulk} {names} >/tmp/measured || exit
    sed 's/^{{/{{"way":"{way}",/' /tmp/measured
"""


def measure_in_vm(overheads, image, configurations, names, *, rounds, bulk, **options):
    """What tests/bench's program `overheads` measures in one VM, with each of the
    `configurations`: pairs of a way's name and its guest.toml. They are measured in one
    boot, alternating, so that they compare. `options` are those of boot().

    Returns the VM's description, and the values by name and way. Ends this program
    where the VM did not measure."""
    if not os.path.exists(overheads):
        raise SystemExit(f"{overheads} is not there: run `make bench-programs` first")
    kernel = build_image(image, [(overheads, "/opt/tests/overheads")])
    names, samples, said = " ".join(names), {}, []

    def take(line):
        entry = json.loads(line) if line.startswith("{") else None
        if entry and "way" in entry:
            samples.setdefault((entry["name"], entry["way"]), []).append(entry["value"])
        else:
            said.append(line)

    runs = [MEASURED_RUN.format(way=way, configuration=text, bulk=bulk, names=names) for way, text in configurations]
    script = MEASURING_SCRIPT.format(rounds=rounds, runs="".join(runs))
    about = boot(kernel, image, script, take, timeout=900, **options)
    if about.get("status") != 0:
        raise SystemExit("\n".join(["the VM did not measure:", *said]))
    return about, samples


def pluggable_device(monitor, device):
    """QEMU's options for a device behind a port, and a socket for its monitor."""
    return [
        *("-qmp", f"unix:{monitor},server=on,wait=off"),
        *("-chardev", f"socket,id=paragpu,path={device.socket}"),
        *("-device", "pcie-root-port,id=plug,slot=1,pref64-reserve=2G"),
        *("-device", "ivshmem-doorbell,id=device,bus=plug,chardev=paragpu,vectors=1"),
    ]


def boot(
    kernel,
    initramfs,
    script,
    on_line,
    *,
    device=None,
    vsock=None,
    tcp=None,
    timeout=300,
    pluggable=False,
    machine=("--memory", "2G"),
    options=(),
    keep=None,
):
    """Boots a VM that runs a shell script; `on_line` sees each line that it
    prints. Where its device is `pluggable` the script has it taken out and put
    in, as tests/vm/hotplug.py says. `machine` are options of run-vm.sh, `options`
    more of QEMU's. The logs go to the folder `keep`, if there is one. Returns the
    VM's description, which is empty if it did not boot."""
    with tempfile.TemporaryDirectory(prefix="paragpu-boot-") as folder:
        commands = os.path.join(folder, "commands")
        with open(commands, "w", encoding="utf-8") as file:
            file.write(script)
        out, extra, plugger = keep or os.path.join(folder, "vm"), list(options), None
        if pluggable:
            monitor = os.path.join(folder, "monitor")
            extra += pluggable_device(monitor, device)
            device, hotplug = None, [monitor, os.path.join(out, "output.log"), device.socket, "ivshmem"]
            plugger = subprocess.Popen(
                owned([os.path.join(ROOT, "tests", "vm", "hotplug.py"), *hotplug]), stdout=subprocess.DEVNULL
            )
        run = subprocess.Popen(
            [
                os.path.join(IMAGES, "run-vm.sh"),
                *("--kernel", kernel),
                *("--initramfs", initramfs),
                *("--commands", commands),
                *("--out", out),
                *(option_of(device) if device else ()),
                *(("--vsock", vsock.socket) if vsock else ()),
                *(("--network",) if tcp else ()),
                *machine,
                *("--timeout", str(timeout)),
                *(["--", *extra] if extra else ()),
            ],
            stdout=subprocess.PIPE,
            text=True,
            errors="replace",
            env=environment_of(device),
        )
        with run.stdout:
            for line in run.stdout:
                on_line(line.strip())
        run.wait(PATIENCE)
        if plugger:
            plugger.terminate()
            plugger.wait(PATIENCE)
        described = os.path.join(out, "vm.json")
        if not os.path.exists(described):
            return {}
        with open(described, encoding="utf-8") as file:
            return json.load(file)
