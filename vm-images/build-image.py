#!/usr/bin/env python3
"""Builds a bootable disk image of Debian, as its cloud images are made, with
paragpu's guest packages installed.

The image boots with BIOS and with UEFI, takes cloud-init's data (NoCloud and
the other sources that Debian enables) for users and network, and grows to the
disk it finds itself on. No loop device, no mount of the image, no service of
this machine is used: the file system is filled by mke2fs, the boot loader is
laid where it belongs.

The same packages, the same mirror's state and the same tools give the same
bytes. Times come from SOURCE_DATE_EPOCH, or else from the packages' changelog.

Needs: mmdebstrap mtools fdisk qemu-utils e2fsprogs; root, or (not tested) uidmap and
subordinate ids.
"""

import argparse
import contextlib
import fcntl
import hashlib
import os
import pathlib
import re
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import uuid

HERE = pathlib.Path(__file__).resolve().parent
TOP = HERE.parent
CHANGELOG = HERE / "packages" / "debian" / "changelog"

RELEASES = {"bookworm": "12", "trixie": "13"}
TOOLS = {
    "mmdebstrap": "mmdebstrap",
    "mformat": "mtools",
    "mcopy": "mtools",
    "sfdisk": "fdisk",
    "qemu-img": "qemu-utils",
    "mke2fs": "e2fsprogs",
    "debugfs": "e2fsprogs",
    "dpkg-deb": "dpkg",
}

# A Debian that boots, can be reached and takes orders from its cloud.
PACKAGES = """
    systemd-sysv systemd-resolved systemd-timesyncd udev dbus libpam-systemd kmod initramfs-tools
    linux-image-cloud-amd64 grub-cloud-amd64 cloud-init cloud-guest-utils
    e2fsprogs fdisk dosfstools openssh-server sudo iproute2 iputils-ping netbase procps
    ca-certificates less vim-tiny apt-utils
""".split()
# What paragpu-dkms builds the module with.
MODULE_PACKAGES = ["dkms", "gcc", "make", "linux-headers-cloud-amd64"]

SECTOR = 512
MIB = 1 << 20
# The order on the disk; the root comes last, so that it can grow.
BIOS_START, BIOS_SIZE = 1 * MIB, 2 * MIB
ESP_START, ESP_SIZE = 3 * MIB, 61 * MIB
ROOT_START = 64 * MIB
# What GRUB of either release can read, whatever this machine's mke2fs prefers.
EXT4_FEATURES = (
    "none,has_journal,ext_attr,resize_inode,dir_index,filetype,extent,64bit,flex_bg,"
    "sparse_super,large_file,huge_file,dir_nlink,extra_isize,metadata_csum"
)
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Failure(Exception):
    """One sentence for the caller."""


class Progress:
    """Which step it is: a bar on a terminal, a line a step elsewhere."""

    def __init__(self, total):
        self.total, self.done, self.start = total, 0, time.monotonic()
        self.live = sys.stderr.isatty()
        self.name = ""

    def step(self, name):
        """The next step begins."""
        self.name = name
        self.done += 1
        self.show("") if self.live else self.line(name)

    def line(self, text):
        """A line that stays."""
        print(f"[{self.done}/{self.total}] {time.monotonic() - self.start:4.0f} s  {text}", file=sys.stderr, flush=True)

    def show(self, detail):
        """Redraws the bar, with what the step is at."""
        if self.live:
            filled = 24 * (self.done - 1) // self.total
            width = max(20, shutil.get_terminal_size().columns - 48)
            text = f"{self.name}: {detail}" if detail else self.name
            bar = "#" * filled + "." * (24 - filled)
            print(f"\r\033[K[{bar}] {time.monotonic() - self.start:4.0f} s  {text[:width]}", end="", file=sys.stderr, flush=True)

    def end(self):
        """Leaves the bar's line."""
        if self.live:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def changelog_epoch():
    """When the packages' newest version was made."""
    command = ["dpkg-parsechangelog", "-l", str(CHANGELOG), "-S", "Timestamp"]
    return int(subprocess.check_output(command, text=True))


class Build:
    """One image in the making, in a folder of its own that goes with it."""

    def __init__(self, options, work, progress):
        self.options, self.work, self.progress = options, work, progress
        self.log = work / "log"
        self.environment = {
            "PATH": PATH,
            "HOME": "/root",
            "LC_ALL": "C.UTF-8",
            "TMPDIR": str(work),
            "SOURCE_DATE_EPOCH": str(options.epoch),
            "E2FSPROGS_FAKE_TIME": str(options.epoch),
            "DEBIAN_FRONTEND": "noninteractive",
            **{name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")},
        }

    def run(self, command, what, input_text=None):
        """Runs a command; what it says is kept in the log, and shown as it fails."""
        with open(self.log, "ab") as log:
            log.write(f"+ {shlex.join(map(str, command))}\n".encode())
        # mmdebstrap ends its children by signals that nohup has them ignore.
        child = subprocess.Popen(
            ["setpriv", "--pdeathsig", "TERM", "env", "--default-signal", *map(str, command)],
            env=self.environment,
            stdin=subprocess.PIPE if input_text is not None else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            if input_text is not None:
                child.stdin.write(input_text.encode())
                child.stdin.close()
            with open(self.log, "ab") as log:
                for line in child.stdout:
                    log.write(line)
                    self.progress.show(line.decode(errors="replace").strip())
            code = child.wait()
        except BaseException:
            # An interrupt ends what runs in order: mmdebstrap
            # unmounts and removes what it made. It waits for its children, and
            # they end sooner where they are told, too.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGTERM)
            child.stdout.read()
            child.wait()
            raise
        finally:
            child.stdout.close()
        if code:
            self.progress.end()
            said = self.log.read_text(errors="replace").splitlines()
            raise Failure("\n".join(said[-25:]) + f"\nbuild-image: {what} failed (status {code})")

    def identifier(self, of):
        """A UUID that only the image's kind and version decide."""
        name = f"paragpu {self.options.release} {self.options.epoch} {of}"
        return str(uuid.uuid5(uuid.NAMESPACE_URL, name))

    # --- the file tree -------------------------------------------------------

    def make_tree(self):
        """Debian and the packages, as a tar file."""
        options, stage = self.options, self.work / "stage"
        (stage / "debs").mkdir(parents=True)
        for package in options.debs:
            shutil.copy(package, stage / "debs")
        environment = f"env SOURCE_DATE_EPOCH={options.epoch} DEBIAN_FRONTEND=noninteractive"
        hooks = [f'copy-in "{stage}/debs" /var/tmp', f'copy-in "{HERE}/cloud/finish" /etc/resolv.conf /var/tmp']
        words = [options.mode, options.release, self.identifier("root"), self.identifier("esp")]
        hooks.append(f'chroot "$1" {environment} sh /var/tmp/finish {shlex.join(words)}')
        if options.fetch:
            hooks += [f'copy-out /var/tmp/fetched "{self.work}"']
        hooks += [f'copy-out /var/tmp/boot "{self.work}"', 'rm -rf "$1"/var/tmp/*']
        command = [
            "mmdebstrap",
            "--variant=apt",
            f"--include={','.join(PACKAGES + (MODULE_PACKAGES if options.mode == 'paragpu' else []))}",
            "--aptopt=Acquire::Retries \"3\"",
            "--dpkgopt=force-unsafe-io",
            *(f"--customize-hook={hook}" for hook in hooks),
            options.release,
            str(self.work / "tree.tar"),
            *options.mirror,
        ]
        self.run(command, f"making Debian {RELEASES[options.release]}")

    # --- the disk ------------------------------------------------------------

    def as_root(self, command):
        """A command that sees the tree's owners, without being root where one is not."""
        if os.geteuid() == 0:
            return command
        return ["unshare", "--map-root-user", "--map-auto", "--", *command]

    def make_root(self):
        """The root file system, filled by mke2fs."""
        image, tree = self.work / "root.ext4", self.work / "tree"
        with open(image, "wb") as file:
            file.truncate(self.options.size - ROOT_START - 1 * MIB)
        mke2fs = [
            *("mke2fs", "-q", "-t", "ext4", "-O", EXT4_FEATURES, "-b", "4096", "-I", "256", "-m", "1"),
            *("-L", "root", "-U", self.identifier("root")),
            *("-E", f"hash_seed={self.identifier('hash')},assume_storage_prezeroed=1"),
            *("-d", tree, image),
        ]
        # Leaves out device nodes, which only root can create and devtmpfs provides, and
        # apt's download folder, whose owner depends on the build machine; apt recreates it.
        script = (
            f"mkdir {tree}; tar -C {tree} --numeric-owner --xattrs --xattrs-include='*' --exclude='./dev/*' --exclude=./var/lib/apt/lists/partial -xpf {self.work}/tree.tar; "
            f"{shlex.join(map(str, mke2fs))}; rm -rf {tree}"
        )
        self.run(self.as_root(["sh", "-ec", script]), "filling the root file system")
        (self.work / "tree.tar").unlink()
        self.settle_times(image)

    def settle_times(self, image):
        """Sets the times that mke2fs took from this machine's copy of the tree:
        when a file was last read, and when its inode changed."""
        counts = dict(
            re.findall(r"^(Inode count|Free inodes): +(\d+)", subprocess.check_output(
                ["/sbin/dumpe2fs", "-h", image], stderr=subprocess.DEVNULL, text=True), re.MULTILINE)
        )
        used = int(counts["Inode count"]) - int(counts["Free inodes"])
        when = f"@{self.options.epoch}"
        # The root directory, then the files, which mke2fs numbers from 11 on.
        lines = (
            f"set_inode_field <{number}> {field} {when}\n"
            for number in (2, *range(11, used + 1))
            for field in ("atime", "ctime")
        )
        script = self.work / "settle"
        script.write_text("".join(lines))
        with open(os.devnull, "wb") as nothing:
            done = subprocess.run(
                ["/sbin/debugfs", "-w", "-f", script, image], env=self.environment, stdout=nothing, stderr=nothing, check=False)
        if done.returncode:
            raise Failure("build-image: debugfs could not set the times of the root file system")
        self.run(["/sbin/e2fsck", "-fn", image], "checking the root file system")

    def make_esp(self):
        """The partition that UEFI starts from: Debian's signed shim and GRUB."""
        image, boot = self.work / "esp.fat", self.work / "boot"
        with open(image, "wb") as file:
            file.truncate(ESP_SIZE)
        serial = f"{self.options.epoch & 0xFFFFFFFF:08x}"
        for path in [*boot.rglob("*")]:
            os.utime(path, (self.options.epoch, self.options.epoch))
        self.run(["mformat", "-i", image, "-F", "-v", "ESP", "-N", serial, "::"], "formatting the EFI partition")
        self.run(["mcopy", "-i", image, "-s", "-m", boot / "EFI", "::"], "filling the EFI partition")

    def make_disk(self):
        """The partitions, with GRUB where a BIOS looks for it."""
        raw, size = self.work / "disk.raw", self.options.size
        with open(raw, "wb") as file:
            file.truncate(size)
        parts = [
            (14, BIOS_START, BIOS_SIZE, "21686148-6449-6E6F-744E-656564454649", "bios"),
            (15, ESP_START, ESP_SIZE, "C12A7328-F81F-11D2-BA4B-00A0C93EC93B", "esp"),
            (1, ROOT_START, size - ROOT_START - 1 * MIB, "4F68BCE3-E8CD-4DB1-96E7-FBCAF984B709", "root"),
        ]
        table = ["label: gpt", f"label-id: {self.identifier('disk')}", "unit: sectors", "first-lba: 34", "sector-size: 512"]
        table += [
            f"{number} : start={start // SECTOR}, size={length // SECTOR}, type={kind}, uuid={self.identifier('part ' + name)}, name=\"{name}\""
            for number, start, length, kind, name in parts
        ]
        self.run(["sfdisk", "--quiet", "--no-reread", "--no-tell-kernel", raw], "partitioning", "\n".join(table) + "\n")
        with open(raw, "r+b") as disk:
            for name, start in (("esp.fat", ESP_START), ("root.ext4", ROOT_START)):
                copy_sparse(self.work / name, disk, start)
                (self.work / name).unlink()
            embed_grub(disk, (self.work / "boot" / "boot.img").read_bytes(), (self.work / "boot" / "core.img").read_bytes())
        self.run(["qemu-img", "convert", "-f", "raw", "-O", "qcow2", "-c", "-m", "1", raw, self.work / "disk.qcow2"], "packing the image")
        raw.unlink()

    def publish(self):
        """Moves what is finished to its place."""
        output = self.options.output
        digest = hashlib.sha256()
        with open(self.work / "disk.qcow2", "rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
        packages = (self.work / "boot" / "packages").read_text()
        manifest = self.work / "manifest"
        manifest.write_text(
            f"# {output.name}\n# sha256 {digest.hexdigest()}\n# SOURCE_DATE_EPOCH={self.options.epoch}\n"
            f"# inputs {inputs(self.options)}\n{packages}"
        )
        if self.options.fetch:
            target = self.options.fetch
            if target.exists():
                shutil.rmtree(target)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(self.work / "fetched", target)
        os.replace(manifest, output.with_suffix(".manifest"))
        os.replace(self.work / "disk.qcow2", output)


def inputs(options):
    """Sum over all that this project puts into an image."""
    digest = hashlib.sha256(f"{options.mode} {options.release} {options.epoch} {options.size} {options.mirror}".encode())
    for path in (pathlib.Path(__file__), HERE / "cloud" / "finish", *sorted(options.debs)):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def is_current(options):
    """Whether the image that is there came from the same inputs."""
    manifest = options.output.with_suffix(".manifest")
    there = options.output.exists() and manifest.exists() and (not options.fetch or options.fetch.exists())
    return there and f"# inputs {inputs(options)}\n" in manifest.read_text()


def copy_sparse(source, disk, offset):
    """Copies a file into the disk, leaving holes where it has some."""
    with open(source, "rb") as file:
        end, at = os.fstat(file.fileno()).st_size, 0
        while at < end:
            try:
                at = os.lseek(file.fileno(), at, os.SEEK_DATA)
            except OSError:
                break
            hole = os.lseek(file.fileno(), at, os.SEEK_HOLE)
            file.seek(at)
            disk.seek(offset + at)
            while at < hole:
                block = file.read(min(1 << 20, hole - at))
                disk.write(block)
                at += len(block)


def embed_grub(disk, boot, core):
    """Lays GRUB's first sector and its core image where grub-install would.

    The fields are those of GRUB's boot.S and diskboot.S: where the first sector
    finds the core image, and where that finds the rest of itself.
    """
    if len(boot) != SECTOR or len(core) > BIOS_SIZE:
        raise Failure("build-image: GRUB's images are not of the sizes that this knows")
    first = BIOS_START // SECTOR
    boot, core = bytearray(boot), bytearray(core + bytes(-len(core) % SECTOR))
    struct.pack_into("<Q", boot, 0x5C, first)
    # A BIOS that names a wrong drive: believe it, as from hard disks one must.
    boot[0x66:0x68] = b"\x90\x90"
    struct.pack_into("<QHH", core, SECTOR - 12, first + 1, len(core) // SECTOR - 1, 0x820)
    disk.seek(0)
    disk.write(boot[:440])
    disk.seek(BIOS_START)
    disk.write(core)


def size_of(text):
    """Bytes of "4G" or "2500M"."""
    match = re.fullmatch(r"(\d+)([MG])", text)
    if not match:
        raise argparse.ArgumentTypeError(f"{text}: say a size like 4G or 2500M")
    return int(match[1]) * (MIB if match[2] == "M" else 1024 * MIB)


def parse():
    """What was asked for, checked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("release", choices=RELEASES, help="which Debian")
    parser.add_argument("output", type=pathlib.Path, help="the qcow2 image; a .manifest beside it lists its packages")
    parser.add_argument("--packages", type=pathlib.Path, default=TOP / "out" / "packages", help="folder of paragpu's .deb files (default: out/packages)")
    parser.add_argument("--plain", action="store_true", help="without paragpu: a cloud image as Debian makes them")
    parser.add_argument("--fetch", type=pathlib.Path, metavar="DIR", help="with --plain: also lay paragpu's packages and all that they need beside the image's own into DIR")
    parser.add_argument("--size", type=size_of, default=size_of("4G"), help="of the disk (default: 4G); the root grows with a larger one")
    parser.add_argument("--mirror", action="append", default=[], help="a mirror's address or a line of sources.list, as mmdebstrap takes it; a dated one of a snapshot service pins every input (default: Debian's mirror as it is now)")
    parser.add_argument("--reuse", action="store_true", help="keep an image that came from the same inputs, whatever the mirror has by now")
    parser.add_argument("--keep-log", type=pathlib.Path, metavar="FILE", help="where the log of a finished build goes")
    options = parser.parse_args()
    missing = sorted({package for tool, package in TOOLS.items() if not shutil.which(tool, path=PATH)})
    if missing:
        parser.error(f"these packages are missing: {' '.join(missing)}")
    if options.fetch and not options.plain:
        parser.error("--fetch goes with --plain")
    options.mode = ("fetch" if options.fetch else "plain") if options.plain else "paragpu"
    options.debs = []
    if options.mode != "plain":
        names = ("paragpu-tools", "paragpu-guest", "paragpu-dkms")
        options.debs = [path for name in names for path in options.packages.glob(f"{name}_*.deb")]
        if len(options.debs) != len(names):
            parser.error(f"{options.packages} does not hold one each of {', '.join(names)}: `make packages` makes them")
    if options.size < 1024 * MIB:
        parser.error("--size: a Debian needs 1G at least")
    try:
        options.epoch = int(os.environ.get("SOURCE_DATE_EPOCH") or changelog_epoch())
    except ValueError:
        parser.error("SOURCE_DATE_EPOCH is not a number of seconds")
    options.output = options.output.absolute()
    return options


@contextlib.contextmanager
def workshop(parent):
    """A folder beside the output, removed at the end; and those that builds
    which were killed left behind."""
    parent.mkdir(parents=True, exist_ok=True)
    for left in parent.glob(".image.*"):
        with open(left / "lock", "ab") as lock:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(left, ignore_errors=True)
    work = pathlib.Path(tempfile.mkdtemp(prefix=".image.", dir=parent))
    try:
        with open(work / "lock", "ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            # mmdebstrap's users in a namespace of their own pass through.
            work.chmod(0o755)
            yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


def main():
    """Builds one image."""
    # Being ended runs the same cleaning up as Ctrl-C, which a shell's background
    # jobs are born ignoring.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    options = parse()
    if options.reuse and is_current(options):
        print(f"{options.output} (there already: remove it for one of the mirror's newest packages)")
        return
    with workshop(options.output.parent) as work:
        build = Build(options, work, Progress(5))
        steps = [
            (f"Debian {RELEASES[options.release]} and its packages", build.make_tree),
            ("root file system", build.make_root),
            ("EFI partition", build.make_esp),
            ("disk", build.make_disk),
            ("checksum", build.publish),
        ]
        try:
            for name, step in steps:
                build.progress.step(name)
                step()
        finally:
            build.progress.end()
        if options.keep_log:
            shutil.copy(build.log, options.keep_log)
    print(options.output)


if __name__ == "__main__":
    try:
        main()
    except Failure as failure:
        sys.exit(str(failure))
    except KeyboardInterrupt:
        sys.exit(130)
