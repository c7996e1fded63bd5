"""A Slurm cluster on one machine: a controller, GPU hosts, client nodes, each in
a network namespace of its own, with a host name and an /etc/paragpu of its own.

Needs root, slurmctld, slurmd, munge and iproute2. Ends the processes of its own
namespaces only.
"""

import glob
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
# pylint: disable=wrong-import-position
import harness

HERE = os.path.dirname(os.path.abspath(__file__))
SHARDS, GPUS = 282, 2
# Of a host that Prometheus watches.
METRICS = """
[metrics]
listen = "127.0.0.1:{metrics}"
"""
# Runs a command as another machine. Its /etc is this machine's, and more; read-only,
# because two commands cannot mount one writable overlay at the same time.
ENTER = 'set -e; hostname "$1"; mount -t overlay overlay -o "lowerdir=$2/etc:/etc" /etc; shift 2; exec "$@"'
CONFIGURATION = """
ClusterName=pool
SlurmctldHost=ctl({address})
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.sock
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SchedulerParameters=bf_interval=2,sched_interval=2,batch_sched_delay=0
SlurmdParameters=config_overrides
SlurmdTimeout=20
KillWait=5
ReturnToService=2
GresTypes=gpu,shard
Prolog={folder}/prolog.sh
Epilog={folder}/epilog.sh
HealthCheckProgram={folder}/health.sh
HealthCheckInterval=5
{nodes}
PartitionName=pool Nodes=ALL Default=YES State=UP MaxTime=INFINITE
"""
# Slurm's accounting, if it is installed.
ACCOUNTED = """
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost={address}
AccountingStoragePass={folder}/munge.sock
AccountingStorageTRES=gres/gpu,gres/shard
"""
ACCOUNTS = """
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
DbdHost=ctl
DbdAddr={address}
SlurmUser=root
PidFile={folder}/slurmdbd.pid
LogFile={folder}/slurmdbd.log
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StorageUser=root
"""
# A GPU host without an engine, and what Slurm adds.
HOST = """
[daemon]
socket = "{own}/paragpud.sock"
control = "{own}/control.sock"
[device]
kind = "software"
[software]
devices = {gpus}
memory = "2GiB"
threads = 1
[pool]
warm = 1
[shm]
window = "64MiB"
[tcp]
listen = "{address}:{port}"
ca = "{tls}/ca.pem"
certificate = "{tls}/{name}.pem"
key = "{tls}/{name}.key"
[lease]
socket = "{own}/lease.sock"
authority = "{tls}"
"""
UNDER_SLURM = """engine = "slurm"
share_time = {share_time}
node = "{name}"
checkpoints = "{folder}/states"
[migration]
listen = "{address}:7475"
ca = "{tls}/ca.pem"
certificate = "{tls}/{name}.pem"
key = "{tls}/{name}.key"
"""


def eventually(condition, what, patience=60):
    """`harness.eventually`, with a patience for daemons of Slurm."""
    return harness.eventually(condition, what, patience)


def call(*command, **options):
    """Runs a command of the system, which must succeed."""
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60, **options).stdout


def with_children(pids):
    """These processes, and all that they started."""
    parents = {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{entry}/stat", encoding="utf-8", errors="replace") as stat:
                parents[int(entry)] = int(stat.read().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            pass
    found = set(pids)
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def off(clock):
    """A command prefix that shifts the clock by this many seconds."""
    if not clock:
        return []
    library = next(iter(glob.glob("/usr/lib/*/faketime/libfaketimeMT.so.1")))
    return ["env", f"LD_PRELOAD={library}", f"FAKETIME={clock:+d}s", "FAKETIME_DONT_FAKE_MONOTONIC=1"]


class Program:
    """A process whose lines of output are kept."""

    def __init__(self, command, environment):
        self.process = subprocess.Popen(
            command, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        self.lines, self.errors = [], []
        for stream, kept in ((self.process.stdout, self.lines), (self.process.stderr, self.errors)):
            threading.Thread(target=self.keep, args=(stream, kept), daemon=True).start()

    @staticmethod
    def keep(stream, kept):
        """Records lines with their arrival times."""
        for line in stream:
            kept.append((time.monotonic(), line.strip()))

    def rounds(self):
        """How many rounds it has done."""
        return sum(line.startswith("round") for _, line in list(self.lines))

    def said(self, text):
        """When a line of its errors had this text; None where none had."""
        return next((at for at, line in list(self.errors) if text in line), None)

    def step(self, line=""):
        """Requests a round, or the command in `line`."""
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def text(self):
        """All that it said."""
        return "\n".join(line for _, line in [*self.lines[-5:], *self.errors])

    def ended(self):
        """Its exit status; None while it runs."""
        return self.process.poll()

    def end(self):
        """Ends it as a user would."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(15)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


class Cluster:
    """The machines. Its context ends them."""

    def __init__(self, hosts=3, clients=2, metrics=None, accounting=False):
        """With a port for `metrics`, leases share GPUs' time by their memory, too. With
        `accounting`, Slurm records jobs in a database, if both are installed."""
        self.metrics = metrics
        self.accounting = accounting and all(map(shutil.which, ("slurmdbd", "mariadbd")))
        self.folder = tempfile.mkdtemp(prefix="paragpu-pool-")
        os.chmod(self.folder, 0o755)
        self.prefix = f"pgp{os.getpid()}"
        self.hosts = [f"gpu{number}" for number in range(1, hosts + 1)]
        self.clients = [f"node{number}" for number in range(1, clients + 1)]
        self.addresses = {name: f"10.77.0.{at}" for at, name in enumerate(["ctl", *self.hosts, *self.clients], 1)}
        self.environment = {
            "PATH": os.environ["PATH"],
            "HOME": self.folder,
            "SLURM_CONF": f"{self.folder}/slurm.conf",
            "TMPDIR": self.folder,
        }
        self.processes, self.programs = {}, []

    def __enter__(self):
        try:
            self.make()
            return self
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_):
        for program in self.programs:
            if program.ended() is None:
                program.process.send_signal(signal.SIGTERM)
        for program in self.programs:
            program.end()
        for name in self.addresses:
            self.kill(name)
        for process in self.processes.values():
            process.wait()
        for name in ("switch", *self.addresses):
            subprocess.run(["ip", "netns", "del", self.prefix + name], capture_output=True, check=False)
        subprocess.run(["umount", "--lazy", f"{self.folder}/states"], capture_output=True, check=False)
        if "PARAGPU_TEST_KEEP" not in os.environ:
            shutil.rmtree(self.folder, ignore_errors=True)

    def make(self):
        """Networks, keys, configurations, processes."""
        self.networks()
        for name in self.addresses:
            for part in ("etc/paragpu", "spool"):
                os.makedirs(f"{self.folder}/{name}/{part}")
        for part in ("state", "states", "dev"):
            os.makedirs(f"{self.folder}/{part}")
        # Small, so that it can be full.
        call("mount", "-t", "tmpfs", "-o", "size=64m,mode=0755", "tmpfs", f"{self.folder}/states")
        for number in range(GPUS):
            # Stand-ins: Slurm insists on device nodes.
            os.mknod(f"{self.folder}/dev/nvidia{number}", 0o20666, os.makedev(1, 3 + 2 * number))
        self.configure()
        self.munge()
        if self.accounting:
            self.accounts()
        self.processes["ctl"] = self.start("ctl", "slurmctld", "-c", "-D")
        for host in self.hosts:
            self.start_host(host)
        eventually(lambda: self.slurm("sinfo", "-h", "-o", "%T").split() == ["idle"], "the nodes are idle")
        for host in self.hosts:
            eventually(lambda host=host: self.ready(host), f"{host} gives GPUs")

    def networks(self):
        """A switch, and a cable to each machine."""
        switch = self.prefix + "switch"
        call("ip", "netns", "add", switch)
        call("ip", "-n", switch, "link", "add", "br0", "type", "bridge")
        call("ip", "-n", switch, "link", "set", "br0", "up")
        for name, address in self.addresses.items():
            space = self.prefix + name
            call("ip", "netns", "add", space)
            call("ip", "link", "add", "eth0", "netns", space, "type", "veth", "peer", "name", name, "netns", switch)
            call("ip", "-n", switch, "link", "set", name, "master", "br0", "up")
            call("ip", "-n", space, "addr", "add", f"{address}/24", "dev", "eth0")
            for link in ("eth0", "lo"):
                call("ip", "-n", space, "link", "set", link, "up")

    def configure(self):
        """Slurm's files, an authority, a host.toml for each host."""
        nodes = [
            f"NodeName={host} NodeAddr={self.addresses[host]} CPUs=64 RealMemory=20000 Gres=gpu:h200:{GPUS},shard:{SHARDS}"
            for host in self.hosts
        ]
        configuration = CONFIGURATION + (ACCOUNTED if self.accounting else "")
        text = configuration.format(folder=self.folder, address=self.addresses["ctl"], nodes="\n".join(nodes))
        self.write("slurm.conf", text)
        gpus = f"{self.folder}/dev/nvidia[0-{GPUS - 1}]"
        self.write("gres.conf", f"Name=gpu Type=h200 File={gpus}\nName=shard Count={SHARDS}\n")
        self.write("cgroup.conf", "CgroupPlugin=cgroup/v1\n")
        for name in ("prolog.sh", "epilog.sh", "health.sh"):
            # As the packages ship them, which find `paragpu` where packages put it.
            own = os.path.join(harness.ROOT, "host-backend", "pool", "examples", name)
            self.write(name, f'#!/bin/sh\nPATH={harness.BINARIES}:$PATH\nSLURM_CONF={self.folder}/slurm.conf\nexport PATH SLURM_CONF\nexec {own}\n')
            os.chmod(f"{self.folder}/{name}", 0o755)
        tls = f"{self.folder}/tls"
        for host in self.hosts:
            call(harness.binary("paragpu"), "certificate", tls, host, self.addresses[host])
            values = {"folder": self.folder, "tls": tls, "name": host, "address": self.addresses[host], "port": 7474}
            values.update(metrics=self.metrics, share_time=str(bool(self.metrics)).lower())
            text = HOST + UNDER_SLURM + (METRICS if self.metrics else "")
            text = text.format(own=f"{self.folder}/{host}", gpus=GPUS, **values)
            self.write(f"{host}/etc/paragpu/host.toml", text)

    def write(self, name, text):
        """Writes a file of the cluster's folder."""
        with open(f"{self.folder}/{name}", "w", encoding="utf-8") as file:
            file.write(text)

    def munge(self):
        """One munged for all: its socket is a file."""
        with open(f"{self.folder}/munge.key", "wb") as key:
            os.chmod(key.fileno(), 0o400)
            key.write(os.urandom(1024))
        options = {"key-file": "munge.key", "socket": "munge.sock", "pid-file": "munged.pid", "log-file": "munged.log", "seed-file": "seed"}
        named = [f"--{option}={self.folder}/{file}" for option, file in options.items()]
        self.processes["munge"] = self.start("ctl", "munged", "--foreground", "--force", *named)
        eventually(lambda: os.path.exists(f"{self.folder}/munge.sock"), "munged listens")

    def accounts(self):
        """A separate database, without user tables, and Slurm's daemon that writes to it."""
        data = f"{self.folder}/database"
        os.mkdir(data)
        options = [f"--datadir={data}", f"--socket={self.folder}/database.sock", f"--pid-file={self.folder}/database.pid"]
        small = ["--bind-address=127.0.0.1", "--skip-grant-tables", "--user=root", "--innodb-flush-log-at-trx-commit=0"]
        self.processes["database"] = self.start("ctl", "mariadbd", "--no-defaults", *options, *small)
        eventually(lambda: os.path.exists(f"{self.folder}/database.sock"), "the database listens")
        self.write("slurmdbd.conf", ACCOUNTS.format(folder=self.folder, address=self.addresses["ctl"]))
        os.chmod(f"{self.folder}/slurmdbd.conf", 0o600)
        self.processes["slurmdbd"] = self.start("ctl", "slurmdbd", "-D")
        manage = self.inside("ctl", "sacctmgr", "--immediate", "add", "cluster", "pool")
        done = lambda: subprocess.run(manage, env=self.environment, capture_output=True, timeout=60, check=False).returncode == 0
        eventually(done, "Slurm's accounting answers")

    def inside(self, name, *command):
        """A command, as one of this machine."""
        enter = ["unshare", "--uts", "--mount", "bash", "-c", ENTER, "_", name, f"{self.folder}/{name}"]
        return ["ip", "netns", "exec", self.prefix + name, *enter, *command]

    def start(self, name, *command):
        """Starts a process of a machine."""
        with open(f"{self.folder}/{name}-{os.path.basename(command[0])}.out", "ab") as log:
            return subprocess.Popen(
                harness.owned(self.inside(name, *command)), env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def start_host(self, host):
        """slurmd and paragpud of a host."""
        self.processes[host] = self.start(host, "slurmd", "-N", host, "-D")
        self.start_daemon(host)

    def start_daemon(self, host, folder=None, clock=None):
        """paragpud of a host, of this build or of the one in a folder, with a clock that is
        so many seconds off."""
        binary = f"{folder}/paragpud" if folder else harness.binary("paragpud")
        self.processes[host + "d"] = self.start(host, *off(clock), binary)

    def agents(self, host):
        """The agents of leases on a host."""
        found = []
        for pid in call("ip", "netns", "pids", self.prefix + host).split():
            try:
                with open(f"/proc/{pid}/cmdline", "rb") as line:
                    if b"\0pool\0agent\0" in line.read():
                        found.append(int(pid))
            except (FileNotFoundError, ProcessLookupError):
                pass
        return found

    def logged(self, host, text):
        """Did a host's daemon log this?"""
        with open(f"{self.folder}/{host}-paragpud.out", encoding="utf-8", errors="replace") as log:
            return text in log.read()

    def kill(self, name):
        """The machine fails: kills all its processes. Workers are confined to
        networks of their own, and found as children."""
        found = subprocess.run(["ip", "netns", "pids", self.prefix + name], capture_output=True, text=True, check=False)
        pids = with_children({int(pid) for pid in found.stdout.split()})
        # First the daemon: it would end the sessions of an agent that dies before it.
        daemon = self.processes.get(name + "d")
        first = daemon.pid if daemon else None
        for pid in sorted(pids, key=lambda pid: pid != first):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def cut(self, name, state):
        """Cuts a machine off ("down"), or brings it back ("up")."""
        call("ip", "-n", self.prefix + "switch", "link", "set", name, state)

    def paragpu(self, host, *arguments, check=True):
        """Asks a host's daemon."""
        command = self.inside(host, harness.binary("paragpu"), *arguments)
        return subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=60, check=check)

    def ready(self, host):
        """Does a host's daemon give GPUs?"""
        done = self.paragpu(host, "status", check=False)
        return done.returncode == 0 and "software:1" in done.stdout and "looking" not in done.stdout

    def slurm(self, *command):
        """Asks Slurm, on the controller."""
        return call(*self.inside("ctl", *command), env=self.environment)

    def sessions(self, host):
        """Lines of `paragpu list`."""
        return self.paragpu(host, "list").stdout.splitlines()[1:]

    def lease(self, client, memory, *mode, options=(), clock=None):
        """Runs a program of tests/pool/guest.py with a lease, on a client node, with
        a clock that is so many seconds off."""
        paragpu = [harness.binary("paragpu"), "run", "--libraries", harness.LIBRARIES, "--pool", "slurm", "--memory", memory]
        command = [*paragpu, *options, sys.executable, f"{HERE}/guest.py", *mode]
        environment = {**self.environment, "PARAGPU_LOG_LEVEL": "info"}
        program = Program(self.inside(client, *off(clock), *command), environment)
        self.programs.append(program)
        return program

    def guest(self, client, directory, *mode):
        """Runs a program of tests/pool/guest.py with the configuration of a directory, on
        a client node or without a network."""
        command = [harness.binary("paragpu"), "run", "--libraries", harness.LIBRARIES, sys.executable, f"{HERE}/guest.py", *mode]
        environment = {**self.environment, "PARAGPU_CONFIG": f"{directory}/guest.toml"}
        command = self.inside(client, *command) if client else ["unshare", "--net", *command]
        program = Program(command, environment)
        self.programs.append(program)
        return program

    def held(self, client, memory, name, *options):
        """Holds a lease that no program uses; and the directory."""
        directory = f"{self.folder}/{name}"
        command = [harness.binary("paragpu"), "pool", "hold", directory, "--pool", "slurm", "--memory", memory, *options]
        program = Program(self.inside(client, *command), self.environment)
        self.programs.append(program)
        return program, directory
