"""Stock frameworks in a VM without KVM, over the PCI device, beside native runs.

usage: test_gpu_vm.py [--seconds N] [--patience N] [--output FILE] [--logs FOLDER] [NAME...]

The VM has this machine's files, over 9p: the Python that runs this, and the wheels
that are installed for it. What the VM writes stays in its memory. Runs cases of
small_cases.py, torch_cases.py, cupy_cases.py and jax_cases.py, a process for each file,
natively and then in the VM, and compares their results bit for bit. A name is FILE or
FILE:CASE. A case that differs runs natively once more: it passes if native does not
repeat itself. Whatever has no result in the VM is a failure, and what fails natively is
skipped. Only QEMU, the VM's image and paragpu's programs are needed besides.

--device software compares with runs over shm on this machine, without a GPU; the wheels
have to be those of `make test-frameworks-software`. PARAGPU_TEST_VM names a folder with
kernel/vmlinuz and initramfs.cpio where they cannot be built; PARAGPU_ACCEL=kvm uses KVM.
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(os.path.dirname(HERE), "bench"), HERE]
# pylint: disable=wrong-import-position
import gpu
import test_software_frameworks as software
from guarded import EXIT, IMPORT
from harness import vm
from measure import harness, say
from turns import PACKAGED, QUIET, native

# What runs if nothing is named: a process each, which a processor without KVM's help
# gets through in minutes.
CASES = {
    "small": ["product", "training_step", "graph"],
    "torch": ["eager_decode", "streams_and_events", "triton_softmax_of_product"],
    "cupy": ["raw_kernel", "reductions", "products", "numba_kernel"],
    "jax": ["jit_arithmetic", "mlp_training_step"],
}
# What needs no machine code.
SOFTWARE = {"small": ["product"], "cupy": ["raw_kernel", "reductions"]}
# PyTorch computes on the CPU by instructions that this processor may have and an emulated
# one may lack, and rounds differently then. JAX computes on the CPU where it finds no GPU.
ALIKE = {"ATEN_CPU_CAPABILITY": "default", "JAX_PLATFORMS": "cuda"}
# Seconds for the VM's boot and end, of all that there are.
MARGIN = 25
# Each process of the VM has a share of the window, for pinned memory.
WINDOW = ("--window-size=4G", "--channels=16")
# The runner's status is not the VM's: each case has its own line.
# JAX looks for the device file that the guest's package makes.
SCRIPT = vm.SHARED_FILES + """
chroot /machine mknod -m 666 /dev/nvidiactl c 195 255
chroot /machine /usr/bin/env -i {environment} {command} 2>&1
cat /machine{stats} 2>/dev/null
exit 0
"""
STATS = "/tmp/paragpu-vm-frameworks-stats.jsonl"


def environment_for(options, kind, values):
    """The environment of a run: the one given, and what makes runs alike."""
    same = {**values, **PACKAGED, **QUIET, **ALIKE}
    if options.device == "software":
        same["CUPY_COMPILE_WITH_PTX"] = "1"
    if kind == "vm":
        # Files that are not there natively. Nothing of this machine's caches helps the VM.
        same.update(HOME="/root", TMPDIR="/tmp", PYTHONDONTWRITEBYTECODE="1")
        for name in ("CUPY_CACHE_DIR", "TRITON_CACHE_DIR", "CUDA_CACHE_PATH"):
            same[name] = f"/tmp/vm-cache/{name.lower()}"
    else:
        # Python's compiled files should be there when the VM looks for them.
        same.pop("PYTHONDONTWRITEBYTECODE", None)
    return same


def command_for(options, names, seconds, jobs):
    """Runs cases by the same program in and outside of the VM."""
    limits = {"--jobs": jobs, "--patience": options.patience, "--seconds": max(1, int(seconds))}
    return [options.python, os.path.join(HERE, "guarded.py"), *(str(word) for pair in limits.items() for word in pair), *names]


def take(line, results):
    """Notes what the runner printed; says so."""
    name = f"{line['file']}/{line['case']}"
    results[name] = line
    why = line.get("error") or line.get("stopped")
    say(f"{name}: {line['seconds']:.1f} s{f', {why}' if why else ''}")


def on_this_machine(options, names, environment, seconds, jobs):
    """Runs cases natively, or over shm on the software GPU."""
    results = {}
    command = command_for(options, names, seconds, jobs)
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as runner:
        for line in runner.stdout:
            take(json.loads(line), results)
    return results


def in_the_vm(options, names, daemon, seconds):
    """Boots the VM and runs cases in it: their results, its description, the calls
    that reached the backend, and whatever else it printed."""
    carried = os.environ.get("PARAGPU_TEST_VM")
    image = os.path.join(carried or os.path.join(harness.ROOT, "out"), "initramfs.cpio" if carried else "shared-initramfs.cpio")
    kernel = os.path.join(carried, "kernel") if carried else vm.build_image(image, programs=False, **vm.SHARING)
    environment = environment_for(options, "vm", daemon.guest_environment("pci", STATS))
    words = (shlex.quote(f"{name}={value}") for name, value in environment.items() if name.isidentifier())
    command = command_for(options, names, seconds, options.cpus)
    script = SCRIPT.format(environment=" ".join(words), command=shlex.join(command), stats=STATS)
    results, calls, said = {}, 0, []

    def on_line(text):
        nonlocal calls
        try:
            line = json.loads(text) if text.startswith("{") else {}
        except ValueError:
            line = {}
        if "file" in line:
            take(line, results)
        elif "calls" in line:
            calls += line["calls"]
        elif text:
            said.append(text)

    with vm.Device(daemon, arguments=WINDOW) as device:
        about = vm.boot(
            kernel,
            image,
            script,
            on_line,
            device=device,
            timeout=int(seconds) + MARGIN // 2,
            # JAX does not start without AVX.
            machine=("--memory", options.memory, "--cpus", str(options.cpus), "--avx"),
            options=vm.sharing(),
            keep=options.logs,
        )
    return results, about, calls, said


def judge(name, first, there, again):
    """What came of a case: a verdict, and why."""
    _, case = name.split("/")
    if why := first.get("error") or first.get("stopped"):
        return "skipped", f"natively: {why}"
    if why := there.get("error") or there.get("stopped") or ("" if there else "no result"):
        return "FAILED", why
    if case == IMPORT:
        return "ran", ""
    if first["digest"] == there["digest"]:
        return "equal", ""
    if again.get("digest") not in (None, first["digest"]):
        return "ran", "native runs differ from each other"
    return "DIFFERS", f"digest {there['digest']}, natively {first['digest']}"


def rows_of(first, there, again):
    """A row for each import and case, and for each end that is not right."""
    rows, ran = [], {line["file"] for line in first.values() if "digest" in line}
    for name in [*first, *(name for name in there if name not in first)]:
        if name in first or name.endswith(f"/{EXIT}"):
            verdict, why = judge(name, first.get(name, {}), there.get(name, {}), again.get(name, {}))
            if name.split("/")[0] not in ran and verdict == "FAILED":
                verdict, why = "skipped", "natively: no case has a result"
            times = {"native_seconds": first.get(name, {}).get("seconds"), "vm_seconds": there.get(name, {}).get("seconds")}
            rows.append({"name": name, "verdict": verdict, **times, "why": why})
    return rows


def differing(first, there):
    """Cases with two results."""
    both = (name for name in first if "digest" in first[name] and "digest" in there.get(name, {}))
    return [name for name in both if first[name]["digest"] != there[name]["digest"]]


def compared(options, names):
    """Runs all of it; returns the rows, the VM's description and problems."""
    begin, problems = time.monotonic(), []
    with tempfile.TemporaryDirectory(prefix="paragpu-frameworks-") as folder:
        cuda = options.device == "cuda"
        with harness.Daemon(*(() if cuda else (software.CAPABILITY,)), device=options.device, log=options.log) as daemon:
            here = native() if cuda else software.environment_of(daemon, folder)
            here = environment_for(options, "native", here)
            jobs = os.cpu_count() if cuda else 1
            say(f"{'natively' if cuda else 'over shm on the software GPU'}: {' '.join(names)}")
            first = on_this_machine(options, names, here, options.seconds / 3, jobs)
            good = [name for name in names if "digest" in first.get(name.replace(":", "/"), {})]
            left = options.seconds - (time.monotonic() - begin) - MARGIN
            if not good or left < MARGIN:
                return rows_of(first, {}, {}), {}, [f"nothing ran natively, or no time is left ({left:.0f} s)"]
            say(f"in the VM, for at most {left:.0f} s: {' '.join(good)}")
            there, about, calls, said = in_the_vm(options, good, daemon, left)
            again = {}
            if others := differing(first, there):
                again = on_this_machine(options, [name.replace("/", ":") for name in others], here, min(60, options.patience), jobs)
            if not about or about.get("status"):
                problems.append(f"the VM: status {about.get('status', 'none, it did not boot')}: " + " | ".join(said[-20:]))
            if sessions := daemon.left():
                problems.append(f"sessions that did not end: {sessions}")
            if not calls and any("digest" in line for line in there.values()):
                problems.append("no process of the VM reported calls of the backend")
            if options.verbose:
                say("\n".join(said))
    return rows_of(first, there, again), {**about, "calls": calls}, problems


def chosen(options):
    """FILE:CASE of all that is asked for."""
    usual = CASES if options.device == "cuda" else SOFTWARE
    names = []
    for wanted in options.cases or usual:
        file, _, case = wanted.partition(":")
        if not os.path.exists(os.path.join(HERE, f"{file}_cases.py")):
            raise SystemExit(f"test_gpu_vm.py: there is no {file}_cases.py")
        if not case and file not in usual:
            raise SystemExit(f"test_gpu_vm.py: name a case of {file}_cases.py, as {file}:CASE")
        names += [f"{file}:{each}" for each in ([case] if case else usual[file])]
    return names


def main():
    """Runs, compares, prints one line for each case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    half = max(2, min(8, (os.cpu_count() or 2) // 2))
    parser.add_argument("--device", choices=("cuda", "software"), default="cuda")
    parser.add_argument("--seconds", type=float, default=450, help="that all of it may take (default 450)")
    parser.add_argument("--patience", type=float, default=180, help="seconds that an import or a case may take (default 180)")
    parser.add_argument("--memory", default="12G", help="of the VM (default 12G)")
    parser.add_argument("--cpus", type=int, default=half, help=f"of the VM, and files that run at once in it (here {half})")
    parser.add_argument("--python", default=sys.executable, help="the Python that has the frameworks (default this one)")
    parser.add_argument("--output", help="write the results there, as JSON")
    parser.add_argument("--logs", help="the VM's console and output go to this folder")
    parser.add_argument("--log", help="keep the daemon's log here")
    parser.add_argument("--verbose", action="store_true", help="show what the VM printed besides")
    parser.add_argument("cases", nargs="*", metavar="NAME", help=f"of {', '.join(CASES)}; or FILE:CASE")
    options = parser.parse_args()
    os.environ.setdefault("PARAGPU_ACCEL", "tcg")
    if options.device == "cuda":
        try:
            device = gpu.probe()
        except gpu.NoGpu as why:
            print(f"skipped: {why}")
            return 0
        where = f"{device['name']}, driver {device['driver']}"
    else:
        where = "the software GPU, instead of native over shm"
    names, begin = chosen(options), time.monotonic()
    rows, about, problems = compared(options, names)
    for row in rows:
        native_time, vm_time = (f"{row[key]:7.1f} s" if row[key] is not None else "      --" for key in ("native_seconds", "vm_seconds"))
        print(f"{row['name']:34} {row['verdict']:8} native {native_time}  VM {vm_time}  {row['why']}".rstrip())
    if options.output:
        with open(options.output, "w", encoding="utf-8") as file:
            json.dump({"version": 1, "device": where, **about, "cases": rows, "problems": problems}, file, indent=1)
            file.write("\n")
    cases = [row for row in rows if not row["name"].endswith((f"/{IMPORT}", f"/{EXIT}"))]
    equal = sum(row["verdict"] == "equal" for row in cases)
    print(
        f"{equal} of {len(cases)} cases in a VM ({about.get('accel')}, {about.get('guest_kernel')}, QEMU {about.get('qemu')}) "
        f"gave the results of {where}, in {time.monotonic() - begin:.0f} s; {about.get('calls', 0)} calls"
    )
    for problem in problems:
        print(f"- {problem}")
    return 1 if problems or any(row["verdict"] in ("FAILED", "DIFFERS") for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
