"""A worker that is taken over, and whose filters are gone: what its user and its
namespaces alone keep it from. As root only: nobody else gives users to workers."""

import ctypes
import json
import os
import signal
import socket
import stat
import subprocess
import tempfile

import harness
import wire
from field import ARENA, CHUNK, PATIENCE, attack, blake3, expect, needs, touch, until
from files import paragpu

FIRST, LAST = 700000, 700063
# A daemon's user that is not root.
OTHER = 65000
USERS = f"--set=confine.users={FIRST}-{LAST}"
LIBC = ctypes.CDLL(None, use_errno=True)
NAMESPACES = ("user", "mnt", "pid", "net", "ipc", "uts")
CLONE_NEWUSER = 0x10000000


def root_only(function):
    """An attack on workers that have users, which only root can give them."""

    def guarded(field):
        needs(os.getuid() == 0, "root")
        return function(field.again(USERS))

    guarded.__name__ = function.__name__
    return attack(guarded)


def status(pid):
    """A process's state, from /proc."""
    with open(f"/proc/{pid}/status", encoding="ascii") as lines:
        return dict(line.rstrip("\n").split(":\t", 1) for line in lines if ":\t" in line)


def user(pid):
    """Who a process is, for files and for signals."""
    ids = {*status(pid)["Uid"].split(), *status(pid)["Gid"].split()}
    expect(len(ids) == 1, f"process {pid} is of the users and groups {ids}")
    return int(ids.pop())


def tenants(field, count=2):
    """Sessions of VMs that differ, and their workers."""
    sessions = [field.session(field.tcp, source=f"127.0.0.{number + 2}") for number in range(count)]
    return sessions, [field.worker(session) for session in sessions]


def inside(worker, function):
    """What a function returns that runs in a worker's namespaces, as its user."""
    home = open(f"/proc/{worker}/ns/user", encoding="ascii")
    spaces = [open(f"/proc/{worker}/ns/{name}", encoding="ascii") for name in NAMESPACES[1:]]
    inner = user(worker) - FIRST
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            for space in (*spaces, home):
                if LIBC.setns(space.fileno(), 0) != 0:
                    raise OSError(ctypes.get_errno(), "setns")
            # Only a child is in the namespace of processes.
            if (last := os.fork()) == 0:
                os.setgroups([])
                os.setresgid(inner, inner, inner)
                # From the namespace's root, so that capabilities go.
                os.setresuid(0, 0, 0)
                os.setresuid(inner, inner, inner)
                os.write(write, json.dumps(function()).encode())
                os._exit(0)
            os.waitpid(last, 0)
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as answer:
        said = answer.read()
    os.waitpid(child, 0)
    for space in (home, *spaces):
        space.close()
    expect(said, "nothing runs in the worker's namespaces")
    return json.loads(said)


def refused(what):
    """Does the system refuse it?"""
    try:
        what()
    except OSError:
        return True
    return False


def keep_image(session, text):
    """Has the host keep an image for the session's VM: its name there."""
    digest = blake3(text)
    session.call("ImageWrite", hash=digest, size=len(text), offset=0, data=text)
    return digest.hex()


def found(folder, name):
    """Where a file of this name is."""
    return next(os.path.join(path, name) for path, _, files in os.walk(folder) if name in files)


@root_only
def each_vm_is_a_user_of_its_own(field):
    (one, other), workers = tenants(field)
    again = field.session(field.tcp, source="127.0.0.2")
    users = [user(worker) for worker in workers]
    expect(user(field.worker(again)) == users[0], "two workers of a VM are of two users")
    expect(len({*users, user(field.daemon.process.pid)}) == 3, f"workers of two VMs are of the users {users}")
    expect(all(FIRST < number <= LAST for number in users), f"{users} are not of the range")
    for worker in workers:
        lines = status(worker)
        expect(lines.get("Groups", "").strip() == "", f"a worker is of the groups {lines['Groups']}")
        for thread in os.listdir(f"/proc/{worker}/task"):
            for kind in ("CapEff", "CapPrm", "CapInh", "CapAmb", "CapBnd"):
                expect(int(status(f"{worker}/task/{thread}")[kind], 16) == 0, f"{kind} of a thread is not empty")
        for name in NAMESPACES:
            theirs = os.readlink(f"/proc/{worker}/ns/{name}")
            expect(theirs != os.readlink(f"/proc/self/ns/{name}"), f"a worker is in the host's namespace {name}")
    spaces = {os.readlink(f"/proc/{worker}/ns/{name}") for worker in workers for name in NAMESPACES}
    expect(len(spaces) == 2 * len(NAMESPACES), "workers share a namespace")
    expect(all(session.call("Ping", value=3)[0] == 3 for session in (one, other, again)), "a session does not answer")
    return 3 * (2 + len(NAMESPACES))


@root_only
def a_worker_sees_no_file_of_others(field):
    (one, other), (worker, _) = tenants(field)
    own = found(field.daemon.folder.name, keep_image(one, b"mine" * 100))
    image = found(field.daemon.folder.name, keep_image(other, b"theirs" * 100))
    state = os.path.join(field.daemon.folder.name, "state")
    folder = [number for number in os.listdir(f"/proc/{worker}/fd") if os.readlink(f"/proc/{worker}/fd/{number}") == os.path.dirname(own)]
    expect(folder, "the worker lacks its images")
    expect(stat.S_IMODE(os.stat(os.path.dirname(own)).st_mode) == 0o700, "others may look at a VM's images")
    opened = os.open(os.path.dirname(own), os.O_RDONLY)
    bare = os.open(os.path.dirname(own), os.O_PATH)
    name = os.path.relpath(image, os.path.dirname(own))
    paths = (image, own, state, field.daemon.control, "/etc/passwd", "/etc/hostname", "/dev/null", harness.binary("paragpud"))

    def tries():
        out = [path for path in paths if not refused(lambda path=path: os.stat(path))]
        for descriptor in (opened, bare):
            out += [at for at in (name, "..", "../..") if not refused(lambda at=at, to=descriptor: os.listdir(os.open(at, os.O_RDONLY, dir_fd=to)))]
        out += [path for path in ("/new", "/proc/new", "new") if not refused(lambda path=path: os.close(os.open(path, os.O_CREAT | os.O_WRONLY)))]
        # But not its own.
        mine = os.stat(os.path.basename(own), dir_fd=bare).st_size
        return out, os.listdir("/"), mine

    out, root, mine = inside(worker, tries)
    os.close(opened)
    os.close(bare)
    expect(not out, f"a worker reaches {out}")
    expect(root == ["proc"] and mine == 400, f"a worker has {root} and {mine} bytes of an image")
    return 17


@root_only
def a_worker_reaches_no_process_and_no_network(field):
    _, (worker, other) = tenants(field)
    daemon, address = field.daemon.process.pid, field.tcp

    def tries():
        out = [f"kill {pid}" for pid in (daemon, other, os.getppid()) if pid and not refused(lambda pid=pid: os.kill(pid, signal.SIGTERM))]
        out += [f"see {name}" for name in os.listdir("/proc") if name.isdigit() and int(name) not in (1, os.getpid())]
        out += ["ptrace"] if LIBC.ptrace(16, daemon, 0, 0) == 0 else []
        for family, to in ((socket.AF_INET, address), (socket.AF_UNIX, field.daemon.control), (socket.AF_UNIX, field.daemon.socket)):
            with socket.socket(family) as sock:
                out += [] if refused(lambda sock=sock, to=to: sock.connect(to)) else [f"connect to {to}"]
        for path in (f"/proc/{daemon}/mem", f"/proc/{other}/mem", "/proc/1/mem", "/proc/1/environ", "/proc/sysrq-trigger"):
            out += [] if refused(lambda path=path: os.close(os.open(path, os.O_RDWR))) else [path]
        out += [] if refused(lambda: os.setuid(0)) else ["be user 0"]
        out += [] if refused(lambda: os.setuid(user(other) - FIRST)) else ["be the other VM's user"]
        with open("/proc/net/dev", encoding="ascii") as devices:
            out += [line for line in devices.read().split("\n")[2:] if line and "lo:" not in line]
        return out

    own = user(other)
    expect(own, "the other worker has no user")
    out = inside(worker, tries)
    expect(not out, f"a worker can {out}")
    return 14


@root_only
def a_user_is_another_vms_only_when_nothing_is_left(field):
    field.again(f"--set=confine.users={FIRST}-{FIRST + 2}")
    (one, other), workers = tenants(field)
    users = [user(worker) for worker in workers]
    folder = os.path.dirname(found(field.daemon.folder.name, keep_image(one, b"first" * 50)))
    try:
        field.session(field.tcp, source="127.0.0.9")
        expect(False, "a third VM has a user of another")
    except ConnectionRefusedError as refusal:
        expect("confine.users" in str(refusal), str(refusal))
    one.send_frame(wire.GOODBYE, 0, 0, b"")
    until("the first VM's session over", lambda: len(field.daemon.sessions()) == 1)
    third = field.session(field.tcp, source="127.0.0.9")
    expect(user(field.worker(third)) == users[0], "the free user is not assigned")
    expect(not os.path.exists(folder), "images of the former VM are there, and its user is another's")
    until("they are removed", lambda: not set_aside(folder))
    # A later daemon knows this from the files.
    keep_image(other, b"second" * 50)
    before, left = field.daemon.sessions(), spawners(field.daemon.process.pid)
    expect(left, "the daemon has no spawner")
    field.daemon.process.kill()
    field.daemon.process.wait(PATIENCE)
    field.daemon.start()
    expect(len(field.daemon.sessions()) == len(before), "a session is lost with its daemon")
    until("the spawner gone with its daemon", lambda: not any(map(is_spawner, left)))
    more = field.session(field.tcp, source="127.0.0.3")
    expect(user(field.worker(more)) == users[1], "a VM has another user after its daemon")
    for session in field.daemon.sessions():
        paragpu(field, "end", str(session["id"]))
    until("sessions over", lambda: not field.daemon.sessions())
    return 5


def set_aside(folder):
    """The directories of former VMs beside this one."""
    return [name for name in os.listdir(os.path.dirname(folder)) if name.startswith("gone-")]


@root_only
def a_vm_with_many_files_that_ends(field):
    """Its user is free before its files are removed, and nobody waits for that."""
    field.again(f"--set=confine.users={FIRST}-{FIRST + 1}")
    one = field.session(field.tcp, source="127.0.0.2")
    owner = user(field.worker(one))
    folder = os.path.dirname(found(field.daemon.folder.name, keep_image(one, b"first" * 50)))
    # As if the worker had written them, one below the other and beside each other.
    deep = os.path.join(folder, "a", "b")
    os.makedirs(deep)
    for number in range(20000):
        touch(os.path.join(folder, f"{number:064x}"))
    for path in (os.path.dirname(deep), deep, *(os.path.join(folder, name) for name in os.listdir(folder))):
        os.chown(path, owner, owner)
    os.chmod(deep, 0o000)
    one.send_frame(wire.GOODBYE, 0, 0, b"")
    until("the first VM's session over", lambda: not field.daemon.sessions())
    other = field.session(field.tcp, source="127.0.0.3")
    expect(user(field.worker(other)) == owner, "the free user is not assigned")
    expect(not os.path.exists(folder), "the former VM's directory has its name")
    # A daemon that dies meanwhile leaves this to the next one.
    field.daemon.process.kill()
    field.daemon.process.wait(PATIENCE)
    field.daemon.start()
    other.close()
    until("the session over", lambda: not [paragpu(field, "end", str(it["id"])) for it in field.daemon.sessions()])
    last = field.session(field.tcp, source="127.0.0.4")
    expect(last.call("Ping", value=3)[0] == 3, "a session does not answer")
    until("all files removed", lambda: not set_aside(folder), patience=60)
    field.again(USERS)
    return 20000


@attack
def users_of_a_user_namespace(_):
    """A user's subordinate users count as that user, whose limits they would evade."""
    needs(os.getuid() == 0, "root")
    needed = "+setuid,+setgid,+chown"
    with tempfile.TemporaryDirectory() as folder:

        def look(_worker, _session):
            os.chmod(folder, 0o755)
            os.chmod(f"{folder}/guests", 0o666)
            read, write = os.pipe()
            end, over = os.pipe()
            if (child := os.fork()) == 0:
                try:
                    os.close(over)
                    os.setgroups([])
                    os.setgid(FIRST + 5)
                    os.setuid(FIRST + 5)
                    session = wire.Session(f"{folder}/guests", deadline=PATIENCE)
                    os.write(write, b"x")
                    os.read(end, 1)
                    session.send_frame(wire.GOODBYE, 0, 0, b"")
                finally:
                    os._exit(0)
            os.close(write)
            expect(os.read(read, 1) == b"x", "a subordinate user has no session")
            ask = [harness.binary("paragpu"), "--control", f"{folder}/control"]
            names = {one["vm"] for one in json.loads(subprocess.check_output([*ask, "list", "-o", "json"]))}
            os.close(over)
            os.waitpid(child, 0)
            return names

        (_, _, names), said = alone(folder, f"--inh-caps={needed}", f"--ambient-caps={needed}", look=look)
        expect(names == {"uid 0", f"uid {OTHER}"}, f"the sessions are of {names}: {said}")
    return 1


def is_spawner(number, parent=None):
    """Whether this process is a daemon's spawner, or what waits to be a worker, of that daemon if
    one is given."""
    try:
        lines = status(number)
    except (FileNotFoundError, ProcessLookupError):
        return False
    return lines["Name"] in ("paragpu-spawner", "paragpu-spare") and parent in (None, int(lines["PPid"]))


def spawners(parent):
    """The spawner of a daemon, and what waits to be a worker. Tests of others may run beside."""
    return [number for number in os.listdir("/proc") if number.isdigit() and is_spawner(number, parent)]


@root_only
def states_of_a_vm_with_a_user(field):
    session = field.session(field.tcp, source="127.0.0.2")
    session.call("MemMap", address=ARENA, size=CHUNK)
    session.post("Memset", destination=ARENA, pitch=0, value=0x42, element=1, width=64, height=1, stream=0)
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o700)
        number = str(field.daemon.sessions()[0]["id"])
        for order in (("checkpoint", number, folder), ("checkpoint", "--end", number, folder)):
            done = paragpu(field, *order)
            expect(done is not None and done.returncode == 0, f"{order}: {done and done.stderr}")
            expect(os.listdir(folder) == ["session.paragpu"], f"{os.listdir(folder)} is left")
            written = os.stat(os.path.join(folder, "session.paragpu"))
            expect(stat.S_IMODE(written.st_mode) == 0o600 and written.st_uid == os.getuid(), "the state belongs to another user")
        until("the session away", lambda: not field.daemon.sessions())
        done = paragpu(field, "restore", folder)
        expect(done is not None and done.returncode == 0, done and done.stderr)
        back = field.session(field.tcp, source="127.0.0.2", resumes=session)
        expect(back.call("CopyFromDevice", source=ARENA, size=8, stream=0)[1] == b"BBBBBBBB", "its memory differs")
        expect(user(field.worker(back)) > FIRST, "a restored session has no user")
        nowhere = paragpu(field, "checkpoint", str(field.daemon.sessions()[0]["id"]), "/proc/nowhere")
        expect(nowhere is not None and nowhere.returncode != 0, "a state is written nowhere")
    expect("is refused" not in field.daemon.log(), "a session needs a system call that is refused")
    return 4


def alone(folder, *privileges, users=USERS, hidden=None, look=lambda worker, session: None):
    """Starts a daemon that is not root, with these capabilities, and with a folder
    of /proc hidden; the user of a session's worker, its numbers, what `look` finds
    and what the daemon says."""
    os.chown(folder, OTHER, OTHER)
    lists = os.path.join(folder, "ranges")
    with open(lists, "w", encoding="ascii") as file:
        file.write(f"{OTHER}:{FIRST}:{LAST - FIRST + 1}\n")
    # With separate lists of subordinate users.
    bind = 'mount --bind "$0" /etc/subuid; mount --bind "$0" /etc/subgid; '
    # As a unit with ProtectKernelTunables= does.
    bind += f"mount -t tmpfs none /proc/{hidden}; " if hidden else ""
    bind += 'exec "$@"'
    command = ["unshare", "--mount", "sh", "-ec", bind, lists]
    command += ["setpriv", f"--reuid={OTHER}", f"--regid={OTHER}", "--clear-groups", "--no-new-privs", *privileges]
    command += [harness.binary("paragpud"), "--device=software"]
    command += [f"--socket={folder}/guests", f"--control={folder}/control", "--print-addresses", users]
    command += [f"--set=daemon.state={folder}/state", f"--set=cache.directory={folder}/cache"]
    process = subprocess.Popen(harness.owned(command), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        expect(process.stdout.readline(), "a daemon that is not root does not start")
        session = wire.Session(f"{folder}/guests", deadline=PATIENCE)
        ask = [harness.binary("paragpu"), "--control", f"{folder}/control"]
        worker = json.loads(subprocess.check_output([*ask, "list", "-o", "json"]))[0]["worker_pid"]
        doctor = subprocess.run([*ask, "doctor", "--side", "host"], capture_output=True, text=True, check=False).stdout
        own = status(process.pid)
        expect(int(own["CapPrm"], 16) == 0, "the daemon keeps the spawner's capabilities")
        expect(own["Seccomp"] == "2", "the daemon's system calls are not filtered")
        seen = user(worker), status(worker)["NSpid"].split(), look(worker, session)
        session.send_frame(wire.GOODBYE, 0, 0, b"")
        session.close()
    finally:
        process.terminate()
        _, said = process.communicate(timeout=PATIENCE)
    return seen, said + doctor


@attack
def a_daemon_that_is_not_root(_):
    needs(os.getuid() == 0, "root")
    needed = "+setuid,+setgid,+chown"
    for users in (USERS, "--set=confine.users=subordinate"):
        with tempfile.TemporaryDirectory() as folder:
            (worker, numbers, _), said = alone(folder, f"--inh-caps={needed}", f"--ambient-caps={needed}", users=users)
            expect(FIRST < worker <= LAST and len(numbers) == 2, f"the worker's user is {worker}: {said}")
            expect("paragpud has no capabilities; its system calls are filtered" in said, said)
    with tempfile.TemporaryDirectory() as folder:
        (worker, *_), said = alone(folder)
        expect(worker == OTHER, f"the worker's user is {worker}")
        expect("workers run as the daemon's user" in said and "CAP_SETUID" in said, said)
    return 3


@attack
def a_worker_where_parts_of_proc_are_hidden(_):
    """The kernel mounts no other /proc then."""
    needs(os.getuid() == 0, "root")
    needed = "+setuid,+setgid,+chown"

    def look(worker, session):
        # Which the worker finds through its own /proc.
        keep_image(session, b"image" * 100)
        expect(session.call("Ping", value=3)[0] == 3, "a session does not answer")

        def tries():
            out = [path for path in ("/proc/1", "/proc/sys", "/proc/irq", f"/proc/{worker}") if not refused(lambda path=path: os.stat(path))]
            return os.listdir("/"), sorted(os.listdir("/proc")), out

        return inside(worker, tries)

    with tempfile.TemporaryDirectory() as folder:
        (_, _, seen), said = alone(folder, f"--inh-caps={needed}", f"--ambient-caps={needed}", hidden="irq", look=look)
        expect(seen[:2] == [["proc"], ["meminfo", "self"]], f"a worker sees {seen}: {said}")
        expect(not seen[2], f"a worker reaches {seen[2]}")
        expect("no files of the host" not in said, said)
    return 5
