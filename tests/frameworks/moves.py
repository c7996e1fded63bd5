"""Cases whose sessions move, or are written to a file and restored."""

import json
import os
import subprocess
import tempfile
import threading
import time

import gpu
from measure import harness, say
from turns import PACKAGED, QUIET, command_of, results_of, run

# Files of cases that use two GPUs: their sessions move together.
PAIRED = {"pairs"}
# Where a checkpoint takes memory rather than a disk.
MEMORY = "/dev/shm"


def stayed(case, options, environment):
    """The result of a run that nothing happens to; nothing if there is none."""
    file, _, name = case.partition(":")
    results, errors, code = run(environment, command_of(file, [f"--steps={options.steps}", name]))
    if "digest" not in results.get(name, {}):
        say(f"{case}: the run that stays: status {code} {results} {errors[-2000:]}")
        return None
    return results[name]


def moved(case, options):
    """Runs a case that stays and one that moves; whether their results are equal."""
    file, _, name = case.partition(":")
    arguments = [f"--steps={options.steps}", name]
    with harness.Daemon("--warm=2", device="cuda") as here, harness.Daemon("--warm=2", device="cuda") as there:
        environment = {**here.guest_environment(options.communicator), **QUIET, **PACKAGED}
        # vLLM ends if workers that start let go of memory meanwhile.
        for daemon in (here, there):
            gpu.await_warm(daemon, 2)
        unmoved = stayed(case, options, environment)
        if unmoved is None:
            return [], False
        for daemon in (here, there):
            gpu.await_warm(daemon, 2)
        with subprocess.Popen(command_of(file, arguments), env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as program:
            said = []
            listener = threading.Thread(target=lambda: said.extend(program.stderr), daemon=True)
            listener.start()
            lines = iter(program.stdout.readline, "")
            begun = next((line for line in lines if "begun" in line), "")
            took = []
            for turn, (at, to) in enumerate(((here, there), (there, here), (here, there))):
                if program.poll() is not None or not begun:
                    break
                session = max(at.sessions(), key=lambda session: session["launches"], default=None)
                if session is None:
                    break
                to_gpu = ["--to-gpu", str((turn + 1) % 2)] if options.between_gpus else []
                what = ["--vm", session["vm"]] if file in PAIRED else [str(session["id"])]
                took.append(ordered(at, what, to, to_gpu))
                if "refused" in took[-1]:
                    say(f"{case}: move {turn + 1}: {took[-1]['refused']}\n{at.log()[-3000:]}\n{to.log()[-3000:]}")
                    break
            output = "".join(lines)
            code = program.wait()
            listener.join()
    result = results_of(output).get(name, {})
    same = result.get("digest") == unmoved["digest"]
    say(f"{case}: {len(took)} moves {took}; {'the same' if same else 'ANOTHER'} result, status {code}")
    say(f"median step {result.get('us')} us, slowest {result.get('slowest_us')} us; unmoved {unmoved['us']} and {unmoved['slowest_us']}")
    if not same:
        say(f"{result} {unmoved} {''.join(said)[-2000:]}")
    row = {"name": case, "moves": took, "same": same, "moved": result, "stayed": unmoved}
    return [row], same and len(took) == 3 and all("refused" not in move for move in took)


def ordered(at, what, to, to_gpu):
    """One move: its report, or why it was refused."""
    command = [harness.binary("paragpu"), "--control", at.control, "migrate", *what, "--to", f"unix://{to.socket}", *to_gpu, "-o", "json"]
    start = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        return {"refused": (done.stderr + done.stdout).strip()}
    report = json.loads(done.stdout)
    # Of several sessions a list.
    report = {"sessions": report} if isinstance(report, list) else report
    return {**report, "seconds": round(time.monotonic() - start, 2)}


def asked(daemon, *order):
    """Asks a daemon; seconds that its answer took. Raises where it refuses."""
    start = time.monotonic()
    command = [harness.binary("paragpu"), order[0], "--control", daemon.control, *order[1:]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        raise RuntimeError(f"{order}: {done.stderr.strip()}\n{daemon.log()[-3000:]}")
    return time.monotonic() - start


def put_away_and_back(daemon, folder):
    """Ends a session with a checkpoint, restarts the daemon with its workers, and restores it: what it took."""
    session = max(daemon.sessions(), key=lambda session: session["launches"])
    written = asked(daemon, "checkpoint", str(session["id"]), folder, "--end")
    daemon.process.terminate()
    daemon.process.wait(30)
    daemon.start()
    gpu.await_warm(daemon, 1)
    size = os.path.getsize(os.path.join(folder, "session.paragpu"))
    read = asked(daemon, "restore", folder)
    return {"bytes": size, "written_s": round(written, 3), "restored_s": round(read, 3), "restored_gb_s": round(size / read / 1e9, 2)}


def restored(case, options):
    """Runs a case whose session is written to a file and restored, all of the host's processes anew."""
    file, _, name = case.partition(":")
    with (
        harness.Daemon("--warm=1", device="cuda") as daemon,
        tempfile.TemporaryDirectory(prefix="paragpu-state-", dir=MEMORY if os.path.isdir(MEMORY) else None) as folder,
    ):
        environment = {**daemon.guest_environment(options.communicator), **QUIET, **PACKAGED}
        unmoved = stayed(case, options, environment)
        if unmoved is None:
            return [], False
        command = command_of(file, [f"--steps={options.steps}", name])
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as program:
            said = []
            listener = threading.Thread(target=lambda: said.extend(program.stderr), daemon=True)
            listener.start()
            begun = any("begun" in line for line in iter(program.stdout.readline, ""))
            took = put_away_and_back(daemon, folder) if begun else {}
            output = program.stdout.read()
            code = program.wait()
            listener.join()
    result = results_of(output).get(name, {})
    same = result.get("digest") == unmoved["digest"]
    say(f"{case}: restored {took}; {'the same' if same else 'ANOTHER'} result, status {code}")
    if not same:
        say(f"{result} {unmoved} {''.join(said)[-2000:]}")
    return [{"name": case, "restored": took, "same": same}], same and bool(took)
