"""The hook of a KubeVirt VM, as virt-launcher calls it: gRPC over a unix socket.

The messages are written here by hand from KubeVirt's interface, not by the code
that is tested. The claim is a lease of a software GPU under mutual TLS, as the
driver writes it for a container. KubeVirt itself does not run.
"""

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
import unittest
import xml.etree.ElementTree as ET

import harness
from harness import vm

try:
    import grpc
except ImportError:
    grpc = None

HERE = os.path.dirname(os.path.abspath(__file__))
QEMU = "{http://libvirt.org/schemas/domain/qemu/1.0}"
VERSIONS = ("v1alpha1", "v1alpha2", "v1alpha3")
PATIENCE = 120

# As written by KubeVirt's virt-launcher, in the relevant parts.
DOMAIN = """<domain type="qemu" xmlns:qemu="http://libvirt.org/schemas/domain/qemu/1.0">
	<name>default_{name}</name>
	<memory unit="b">{memory}</memory>
	<os>
		<type arch="x86_64" machine="q35">hvm</type>
		{boot}
		<smbios mode="sysinfo"></smbios>
	</os>
	<sysinfo type="smbios">
		<system>
			<entry name="uuid">e4686d2c-6e8d-4335-b8fd-81bee22f4814</entry>
			<entry name="manufacturer">KubeVirt</entry>
		</system>
	</sysinfo>
	<devices>
		<emulator>/usr/bin/qemu-system-x86_64</emulator>
		<controller type="usb" index="0" model="none"></controller>
		<controller type="virtio-serial" index="0" model="virtio-non-transitional"></controller>
		<video>
			<model type="none"></model>
		</video>
		<memballoon model="none"></memballoon>
		{devices}
	</devices>
	<clock offset="utc" adjustment="reset">
		<timer name="rtc" tickpolicy="catchup" present="yes" track="guest"></timer>
		<timer name="hpet" present="no"></timer>
	</clock>
	<metadata>
		<kubevirt xmlns="http://kubevirt.io">
			<uid>f4686d2c-6e8d-4335-b8fd-81bee22f4814</uid>
		</kubevirt>
	</metadata>
	<features>
		<acpi></acpi>
		<apic></apic>
	</features>
	<cpu mode="maximum"></cpu>
	<vcpu placement="static">2</vcpu>
	{more}
</domain>"""

# Runs in the VM, which can reach a GPU only over its vsock.
IN_THE_VM = """
cat >/etc/paragpu/guest.toml <<END
communicator = "vsock"
[vsock]
port = 7014
relayed = true
END
/opt/paragpu/programs/vectorAdd
"""


def has_libvirt():
    """Can libvirt's driver for QEMU run without a daemon?"""
    users = subprocess.run(["getent", "passwd", "libvirt-qemu"], capture_output=True, check=False)
    return users.returncode == 0 and shutil.which("virt-qemu-run") is not None


def domain(*, name="vm", memory=128 << 20, boot="", devices="", more=""):
    """A VM's domain."""
    return DOMAIN.format(name=name, memory=memory, boot=boot, devices=devices, more=more)


def field(number, data):
    """A protobuf field of bytes."""
    length, sizes = len(data), bytearray()
    while True:
        sizes.append(length & 0x7F | (0x80 if length > 0x7F else 0))
        length >>= 7
        if not length:
            return bytes([number << 3 | 2]) + bytes(sizes) + data


def fields(data):
    """The fields of bytes of a protobuf message, and numbers as numbers."""
    found, at = [], 0

    def number():
        nonlocal at
        value, shift = 0, 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(data):
        key = number()
        value = number()
        if key & 7 == 2:
            value, at = data[at : at + value], at + value
        found.append((key >> 3, value))
    return found


def elements(root):
    """Each element with its path, attributes and text, in order."""
    found = []

    def walk(element, path):
        path = f"{path}/{element.tag}"
        found.append((path, dict(element.attrib), (element.text or "").strip()))
        for child in element:
            walk(child, path)

    walk(root, "")
    return found


class Hook:
    """The hook's process, next to a VM."""

    def __init__(self, claim, *arguments, vsock=None):
        self.folder = tempfile.TemporaryDirectory(prefix="paragpu-hook-")
        self.log_path = os.path.join(self.folder.name, "log")
        self.directory = os.path.join(self.folder.name, "hooks")
        os.mkdir(self.directory)
        environment = dict(os.environ)
        environment.pop("PARAGPU_CONFIG", None)
        if claim:
            environment["PARAGPU_CONFIG"] = claim
        with open(self.log_path, "wb") as log:
            command = [harness.binary("paragpu-kubernetes"), "hook", "--directory", self.directory]
            places = ["--compute", self.directory, "--vsock", vsock or vm.vhost_device_vsock() or "vhost-device-vsock"]
            self.process = subprocess.Popen(harness.owned([*command, *places, *arguments]), env=environment, stdout=log, stderr=log)
        self.socket = os.path.join(self.directory, "paragpu.sock")
        # Its authority is that of virt-launcher's calls.
        self.channel = grpc.insecure_channel(f"unix:{self.socket}", options=[("grpc.default_authority", "localhost")])
        try:
            grpc.channel_ready_future(self.channel).result(PATIENCE)
        except grpc.FutureTimeoutError:
            raise AssertionError(f"the hook does not answer: {self.log()}") from None

    def log(self):
        """Its output."""
        with open(self.log_path, encoding="utf-8", errors="replace") as log:
            return log.read()

    def call(self, method, request=b""):
        """One call, in bytes."""
        return self.channel.unary_unary(method)(request, timeout=PATIENCE)

    def define(self, xml, version="v1alpha3"):
        """The domain as the hook changes it."""
        xml = xml if isinstance(xml, bytes) else xml.encode()
        vmi = json.dumps({"metadata": {"name": "vm", "namespace": "default"}}).encode()
        answer = self.call(f"/kubevirt.hooks.{version}.Callbacks/OnDefineDomain", field(1, xml) + field(2, vmi))
        ((number, text),) = fields(answer)
        assert number == 1, answer
        return text.decode()

    def refusal(self, xml, version="v1alpha3"):
        """The sentence for a domain that it refuses."""
        try:
            return f"not refused: {self.define(xml, version)}"
        except grpc.RpcError as error:
            assert error.code() == grpc.StatusCode.FAILED_PRECONDITION, error
            return error.details()

    def proxy(self):
        """The socket for the VM's programs."""
        return os.path.join(self.directory, "paragpu", "vsock_7014")

    def stop(self):
        """Ends it, if it has not ended; its exit status."""
        self.channel.close()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(30)
        finally:
            self.process.kill()
            self.process.wait()
            self.folder.cleanup()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()


class Claim:
    """A lease of a software GPU, with the files that lead to it over TLS."""

    def __init__(self):
        self.folder = tempfile.TemporaryDirectory(prefix="paragpu-claim-")
        tls = os.path.join(self.folder.name, "tls")
        subprocess.run([harness.binary("paragpu"), "certificate", tls, "127.0.0.1"], check=True, capture_output=True, timeout=60)
        settings = {
            "tcp.ca": f"{tls}/ca.pem",
            "tcp.certificate": f"{tls}/127.0.0.1.pem",
            "tcp.key": f"{tls}/127.0.0.1.key",
            "lease.socket": f"{self.folder.name}/lease.sock",
            "lease.authority": tls,
        }
        self.daemon = harness.Daemon(*(f"--set={name}={value}" for name, value in settings.items()))
        self.directory = os.path.join(self.folder.name, "claim")
        of_host = {f"PARAGPU_HOST_{name.replace('.', '_').upper()}": value for name, value in settings.items()}
        environment = {**os.environ, **of_host, "PARAGPU_HOST_TCP_LISTEN": self.daemon.addresses["tcp"]}
        command = [harness.binary("paragpu"), "pool", "hold", self.directory, "--pool", "none", "--memory", "1GiB"]
        self.holder = subprocess.Popen(harness.owned(command), env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self.configuration = os.path.join(self.directory, "guest.toml")
        line = self.holder.stderr.readline()
        if " as lease-" not in line:
            said = line + self.daemon.log()
            self.stop()
            raise AssertionError(f"no lease: {said}")

    def stop(self):
        """Ends the lease and its daemon."""
        self.holder.terminate()
        self.holder.wait(30)
        self.holder.stderr.close()
        self.daemon.stop()
        self.folder.cleanup()


@unittest.skipUnless(grpc, "Python's grpcio is not there: `make test` installs it")
@unittest.skipUnless(vm.vhost_device_vsock(), "vhost-device-vsock is not there: `make vhost-vsock` builds it")
@unittest.skipUnless(os.geteuid() == 0, "paragpud leases to root only where no engine asks")
class KubeVirt(unittest.TestCase):
    """One hook, one claim."""

    @classmethod
    def setUpClass(cls):
        cls.claim = Claim()
        cls.addClassCleanup(cls.claim.stop)

    def hook(self, *arguments, claim=True, vsock=None):
        """A hook, that ends with the test."""
        hook = Hook(self.claim.configuration if claim else None, *arguments, vsock=vsock)
        self.addCleanup(hook.stop)
        return hook

    def test_virt_launcher_learns_what_the_hook_is(self):
        hook = self.hook()
        answer = fields(hook.call("/kubevirt.hooks.info.Info/Info"))
        self.assertEqual([value for number, value in answer if number == 1], [b"paragpu"])
        points = [dict(fields(value))[1] for number, value in answer if number == 3]
        self.assertEqual(points, [b"OnDefineDomain", b"Shutdown"])
        self.assertEqual({value.decode() for number, value in answer if number == 4}, set(VERSIONS))
        # virt-launcher takes each socket that it finds here for a hook's.
        self.assertEqual(os.listdir(hook.directory), ["paragpu.sock"])

    def test_each_version_gives_the_domain_its_way_and_leaves_the_rest(self):
        hook = self.hook()
        before = domain()
        for version in VERSIONS:
            with self.subTest(version=version):
                after = ET.fromstring(hook.define(before, version))
                values = [arg.get("value") for arg in after.findall(f"{QEMU}commandline/{QEMU}arg")]
                socket = f"{hook.directory}/paragpu/vhost"
                self.assertEqual(values[:2], ["-chardev", f"socket,id=paragpu-vsock,path={socket}"])
                self.assertEqual(values[2], "-device")
                device = {"driver": "vhost-user-vsock-pci", "chardev": "paragpu-vsock", "id": "paragpu-vsock0"}
                self.assertEqual(json.loads(values[3]), device)
                self.assertEqual(after.find("memoryBacking/access").attrib, {"mode": "shared"})
                self.assertEqual(after.find("memoryBacking/source").attrib, {"type": "memfd"})
                for new in ("memoryBacking", f"{QEMU}commandline"):
                    after.remove(after.find(new))
                self.assertEqual(elements(after), elements(ET.fromstring(before)))
                self.assertTrue(os.path.exists(socket), "QEMU connects as soon as libvirt starts it")
        self.assertEqual(os.stat(f"{hook.directory}/paragpu").st_mode & 0o777, 0o700)

    def test_a_domain_that_cannot_have_it_is_refused_with_a_sentence(self):
        hook = self.hook()
        own = '<vsock model="virtio-non-transitional"><cid auto="no" address="7"></cid></vsock>'
        for xml, words in (
            (b"\xff\xfe<\x00d\x00", "UTF-8"),
            (b"", "is incomplete"),
            ("<domain type='qemu'><devices>", "is incomplete"),
            ("<network/>", "is not a domain"),
            ('<!DOCTYPE d [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;&a;">]>' + domain(), "document type"),
            (domain(devices=own), "leave out autoattachVSOCK"),
            (domain(more="<memoryBacking/><memoryBacking/>"), "twice"),
            (domain().replace('"qemu"', '"xen"', 1), "QEMU"),
            ("<a>" * 100_000 + domain(), "is not a domain"),
        ):
            with self.subTest(words=words, xml=xml[:60]):
                for version in VERSIONS:
                    said = hook.refusal(xml, version)
                    self.assertTrue(said.startswith("paragpu: ") and words in said, said)
        # Malformed protobuf, and a message that is longer than gRPC accepts.
        for request in (b"\x0a\xff\xff\xff\xff\x0f", field(1, b" " * (5 << 20))):
            with self.assertRaises(grpc.RpcError):
                hook.call("/kubevirt.hooks.v1alpha3.Callbacks/OnDefineDomain", request)
        self.assertFalse(os.path.exists(f"{hook.directory}/paragpu"), "nothing was started for them")
        self.assertIn("vhost-user-vsock", hook.define(domain()), "the hook goes on")

    def test_a_container_without_a_claim_and_a_daemon_that_fails_are_told(self):
        self.assertIn("resources.claims", self.hook(claim=False).refusal(domain()))
        self.assertIn("/nowhere", self.hook(vsock="/nowhere").refusal(domain()))
        self.assertIn("ended", self.hook(vsock="/bin/false").refusal(domain()))

    def program(self, hook, *mode):
        """A program in the VM's place, with neither network nor key."""
        os.makedirs(f"{hook.folder.name}/vm", exist_ok=True)
        configuration = f"{hook.folder.name}/vm/guest.toml"
        with open(configuration, "w", encoding="utf-8") as file:
            file.write(f'communicator = "unix"\n[unix]\nsocket = "{hook.proxy()}"\n[vsock]\nrelayed = true\n')
        command = ["unshare", "--net", harness.binary("paragpu"), "run", "--libraries", harness.LIBRARIES]
        program = [*command, "python3", os.path.join(HERE, "..", "pool", "guest.py"), *mode]
        environment = {**os.environ, "PARAGPU_CONFIG": configuration}
        return subprocess.run(program, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False)

    def test_programs_come_to_the_claims_gpu_and_have_its_limit(self):
        hook = self.hook()
        hook.define(domain())
        done = self.program(hook, "take", str(512 << 20))
        self.assertEqual(done.stdout.strip(), "took", done.stderr)
        done = self.program(hook, "take", str((1 << 30) + (1 << 20)))
        self.assertEqual(done.stdout.strip(), "refused", done.stderr)
        # Asked again, it serves as before.
        hook.define(domain())
        self.assertEqual(self.program(hook, "take", "4096").stdout.strip(), "took")

    def test_the_hook_ends_with_its_vm(self):
        hook = self.hook()
        hook.define(domain())
        hook.call("/kubevirt.hooks.v1alpha3.Callbacks/Shutdown")
        self.assertEqual(hook.process.wait(PATIENCE), 0, hook.log())
        self.assertFalse(os.path.exists(hook.socket))
        other = self.hook()
        other.define(domain())
        other.process.send_signal(signal.SIGTERM)
        self.assertEqual(other.process.wait(PATIENCE), 0, other.log())

    @unittest.skipUnless(has_libvirt(), "virt-qemu-run and libvirt's user are not there: libvirt-daemon-system brings them")
    @unittest.skipUnless(shutil.which("qemu-system-x86_64"), "qemu-system-x86_64 is not installed")
    def test_libvirt_starts_the_domain_and_its_vm_computes(self):
        """libvirt's QEMU driver accepts the hook's XML."""
        folder = self.enterContext(tempfile.TemporaryDirectory(prefix="paragpu-kubevirt-"))
        initramfs, commands = f"{folder}/initramfs", f"{folder}/commands"
        with open(commands, "w", encoding="utf-8") as file:
            file.write(IN_THE_VM)
        kernel = vm.build_image(initramfs, [(commands, "/paragpu/commands")])
        # Without KVM on a busy machine the kernel finds its timer too slow, and panics.
        arguments = "console=ttyS0 panic=-1 quiet no_timer_check"
        boot = f"<kernel>{kernel}/vmlinuz</kernel><initrd>{initramfs}</initrd><cmdline>{arguments}</cmdline>"
        serial = "".join(
            f'<serial type="file"><source path="{folder}/{name}"></source><target port="{port}"></target></serial>'
            for port, name in enumerate(("console", "output"))
        )
        hook = self.hook()
        xml = hook.define(domain(memory=1 << 30, boot=boot, devices=serial, more="<on_poweroff>destroy</on_poweroff><on_reboot>destroy</on_reboot>"))
        with open(f"{folder}/domain.xml", "w", encoding="utf-8") as file:
            file.write(xml)
        # As in virt-launcher's container: one user, and nothing around QEMU.
        os.makedirs(f"{folder}/libvirt/etc")
        with open(f"{folder}/libvirt/etc/qemu.conf", "w", encoding="utf-8") as file:
            file.write('user = "root"\ngroup = "root"\nsecurity_driver = "none"\nnamespaces = []\ncgroup_controllers = []\nstdio_handler = "file"\n')
        command = ["virt-qemu-run", "--root", f"{folder}/libvirt", f"{folder}/domain.xml"]
        with open(f"{folder}/qemu", "wb") as log:
            machine = subprocess.Popen(harness.owned(command), stdout=log, stderr=log)

        def said():
            text = ""
            for name in ("qemu", "console", "output"):
                if os.path.exists(f"{folder}/{name}"):
                    with open(f"{folder}/{name}", encoding="utf-8", errors="replace") as file:
                        text += file.read()
            return text

        try:
            deadline = time.monotonic() + 5 * PATIENCE
            while "@paragpu end" not in said() and machine.poll() is None and time.monotonic() < deadline:
                time.sleep(0.2)
            self.assertIn("@paragpu end 0", said())
        finally:
            machine.terminate()
            machine.wait(PATIENCE)
