"""A Kubernetes control plane on loopback: etcd, API server, scheduler and controller
manager, without a kubelet and without containers. Two paragpuds with a software GPU
each, the driver's role of each host, and its role of each of two nodes.

Ends the processes that it started only.
"""

import functools
import json
import os
import secrets
import shutil
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
# pylint: disable=wrong-import-position
import harness
from pool import cluster

# Waits as the pool's tests do, for as long as a control plane takes to settle.
eventually = functools.partial(cluster.eventually, patience=90)

EXAMPLES = os.path.join(harness.ROOT, "host-backend", "kubernetes", "examples")
DRIVER = "gpu.paragpu.dev"
RESOURCES = "/apis/resource.k8s.io/v1"
KINDS = {
    "Namespace": "/api/v1/namespaces",
    "ServiceAccount": "/api/v1/namespaces/{namespace}/serviceaccounts",
    "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "DeviceClass": f"{RESOURCES}/deviceclasses",
}
CONTROLLERS = (
    "serviceaccount-controller,resourceclaim-controller,garbage-collector-controller,"
    "pod-garbage-collector-controller,device-taint-eviction-controller"
)
KUBECONFIG = """
apiVersion: v1
kind: Config
clusters: [{{name: c, cluster: {{server: "{server}", certificate-authority: "{ca}"}}}}]
users: [{{name: u, user: {{token: "{token}"}}}}]
contexts: [{{name: x, context: {{cluster: c, user: u}}}}]
current-context: x
"""
# A container: it sees only the files of its own claims, and runs as another user.
CONTAINER = """
mount --make-rprivate /
mkdir -p "$2"; mount --bind "$1" "$2"
mount -t tmpfs -o mode=755 tmpfs "$(dirname "$1")"
mkdir "$1"; mount --bind "$2" "$1"
shift 2
exec setpriv --reuid 65534 --regid 65534 --clear-groups "$@"
"""


class Refused(Exception):
    """The API server refuses."""


class Cluster:
    """The machines. Its context ends them."""

    def __init__(self, binaries):
        self.binaries = binaries
        self.folder = tempfile.mkdtemp(prefix="paragpu-kubernetes-")
        os.chmod(self.folder, 0o755)
        self.processes = {}
        self.token = secrets.token_hex(16)
        self.server, self.context, self.ready_s = "", None, 0

    def __enter__(self):
        try:
            self.control_plane()
            return self
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_):
        for process in reversed(self.processes.values()):
            process.terminate()
        for process in self.processes.values():
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if os.environ.get("PARAGPU_TEST_KEEP"):
            print(f"kept {self.folder}", file=sys.stderr)
        else:
            shutil.rmtree(self.folder, ignore_errors=True)

    def start(self, name, *command, **environment):
        """A process that lives as long as the cluster, or until `kill`."""
        with open(f"{self.folder}/{name}.log", "ab") as log:
            self.processes[name] = subprocess.Popen(
                harness.owned(list(command)), env={**os.environ, **environment}, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def kill(self, name):
        """Kills a process, as a crash does."""
        process = self.processes.pop(name)
        process.kill()
        process.wait()

    def end(self, name):
        """Ends a process as the system does; its exit status."""
        process = self.processes.pop(name)
        process.terminate()
        return process.wait(30)

    def log(self, name):
        """What a process said."""
        with open(f"{self.folder}/{name}.log", encoding="utf-8", errors="replace") as log:
            return log.read()

    def write(self, name, text):
        """A file of the cluster's."""
        path = f"{self.folder}/{name}"
        with open(path, "w", encoding="utf-8", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
            file.write(text)
        return path

    def control_plane(self):
        """etcd, API server, scheduler, controller manager."""
        began = time.monotonic()
        store, peer, port, scheduler, manager = (harness.free_port() for _ in range(5))
        etcd = f"http://127.0.0.1:{store}"
        peers = f"http://127.0.0.1:{peer}"
        self.start(
            "etcd", "etcd", f"--data-dir={self.folder}/etcd", f"--listen-client-urls={etcd}", f"--advertise-client-urls={etcd}",
            f"--listen-peer-urls={peers}", f"--initial-advertise-peer-urls={peers}", f"--initial-cluster=default={peers}", "--unsafe-no-fsync",
        )  # fmt: skip
        key = f"{self.folder}/accounts.key"
        subprocess.run(["openssl", "genrsa", "-out", key, "2048"], check=True, capture_output=True)
        tokens = self.write("tokens.csv", f"{self.token},admin,admin,system:masters\n")
        self.start(
            "apiserver", f"{self.binaries}/kube-apiserver", f"--etcd-servers={etcd}", f"--secure-port={port}", "--bind-address=127.0.0.1",
            f"--cert-dir={self.folder}/apiserver", "--authorization-mode=RBAC", f"--token-auth-file={tokens}", "--service-cluster-ip-range=10.0.0.0/24",
            f"--service-account-key-file={key}", f"--service-account-signing-key-file={key}", "--service-account-issuer=https://kubernetes.default.svc",
            "--endpoint-reconciler-type=none",
            # No kubelet says that nodes are ready.
            "--disable-admission-plugins=TaintNodesByCondition",
        )  # fmt: skip
        self.server = f"https://127.0.0.1:{port}"
        authority = f"{self.folder}/apiserver/apiserver.crt"
        eventually(lambda: os.path.exists(authority), "the API server has a certificate")
        self.context = ssl.create_default_context(cafile=authority)

        def ready():
            try:
                return self.call("GET", "/readyz", raw=True) == b"ok"
            except (OSError, Refused, ssl.SSLError):
                return False

        eventually(ready, "the API server is ready", patience=180)
        config = self.write("admin.conf", KUBECONFIG.format(server=self.server, ca=authority, token=self.token))
        own = [f"--kubeconfig={config}", "--leader-elect=false", "--bind-address=127.0.0.1"]
        self.start("scheduler", f"{self.binaries}/kube-scheduler", *own, f"--secure-port={scheduler}")
        self.start(
            "manager", f"{self.binaries}/kube-controller-manager", *own, f"--secure-port={manager}",
            f"--controllers={CONTROLLERS}", f"--service-account-private-key-file={key}",
        )  # fmt: skip
        eventually(lambda: self.find("/api/v1/namespaces/default/serviceaccounts/default"), "there is a service account")
        self.ready_s = time.monotonic() - began

    def call(self, method, path, body=None, raw=False, token=None):
        """A request of an administrator, or of who has the token."""
        kind = "application/yaml" if isinstance(body, str) else "application/json"
        data = body.encode() if isinstance(body, str) else None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {token or self.token}", "Content-Type": kind}
        request = urllib.request.Request(self.server + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=30, context=self.context) as response:
                return response.read() if raw else json.load(response)
        except urllib.error.HTTPError as error:
            raise Refused(f"{error.code} {error.read().decode(errors='replace')}") from error

    def find(self, path):
        """An object; None where there is none."""
        try:
            return self.call("GET", path)
        except Refused as error:
            if str(error).startswith("404"):
                return None
            raise

    def apply(self, example):
        """Makes the objects of an example that are the cluster's."""
        with open(os.path.join(EXAMPLES, example), encoding="utf-8") as file:
            parts = file.read().split("\n---\n")
        for part in parts:
            said = dict(line.strip().split(": ", 1) for line in part.splitlines() if ": " in line)
            kind = next(line.split(": ")[1] for line in part.splitlines() if line.startswith("kind: "))
            self.call("POST", KINDS[kind].format(namespace=said.get("namespace")), part)

    def account(self, name):
        """A file with the token of one of the driver's accounts."""
        path = f"/api/v1/namespaces/paragpu/serviceaccounts/{name}/token"
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        token = self.call("POST", path, request)["status"]["token"]
        return self.write(f"{name}.token", token)

    def role(self, account, *command):
        """The command of one of the driver's roles."""
        ca = f"{self.folder}/apiserver/apiserver.crt"
        own = ["--server", self.server, "--ca", ca, "--token", f"{self.folder}/{account}.token"]
        return [harness.binary("paragpu-kubernetes"), *own, *command]

    def host(self, name, *options):
        """The driver's role of a GPU host."""
        role = self.role("host", "host", "--name", name, "--state", f"{self.folder}/{name}/leases", *options)
        self.start(f"{name}-driver", *role, PARAGPU_HOST_CONFIG=f"{self.folder}/{name}/host.toml")

    def join(self, name):
        """A GPU host: its paragpud, and the driver's role."""
        own, address = f"{self.folder}/{name}", "127.0.0.1"
        os.makedirs(own)
        values = {"own": own, "gpus": 1, "address": address, "port": harness.free_port(), "tls": f"{self.folder}/tls", "name": address}
        self.write(f"{name}/host.toml", cluster.HOST.format(**values) + 'engine = "none"\n')
        self.daemon(name)
        self.host(name)

    def daemon(self, name):
        """A GPU host's paragpud."""
        command = [harness.binary("paragpud"), "--worker", harness.binary("paragpu-worker")]
        self.start(name, *command, PARAGPU_HOST_CONFIG=f"{self.folder}/{name}/host.toml")

    def sessions(self, name):
        """The sessions of a GPU host."""
        command = [harness.binary("paragpu"), "list", "--control", f"{self.folder}/{name}/control.sock", "-o", "json"]
        return json.loads(subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout)

    def node(self, name):
        """A node of Pods: an object, and the driver's role there."""
        capacity = {"cpu": "8", "memory": "8Gi", "pods": "110"}
        status = {"capacity": capacity, "allocatable": capacity, "conditions": [{"type": "Ready", "status": "True"}]}
        self.call("POST", "/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": status})
        self.plugin(name)

    def plugin(self, name):
        """The driver's role of a node of Pods."""
        own = f"{self.folder}/{name}"
        places = ["--claims", f"{own}/claims", "--cdi", f"{own}/cdi", "--kubelet", f"{own}/kubelet"]
        self.start(f"{name}-driver", *self.role("node", "node", "--name", name, *places))
        eventually(lambda: os.path.exists(self.registration(name)), f"{name} has the plugin")

    def registration(self, name):
        """The socket by which a node's kubelet finds the plugin."""
        return f"{self.folder}/{name}/kubelet/plugins_registry/{DRIVER}-reg.sock"

    def kubelet(self, node, verb, claim):
        """What a kubelet calls: the CDI device, and the error."""
        metadata = claim["metadata"]
        command = [harness.binary("examples/kubelet"), f"{self.folder}/{node}/kubelet/plugins/{DRIVER}/dra.sock", verb]
        command += [metadata["namespace"], metadata["name"], metadata["uid"]]
        done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
        return done.stdout.strip(), done.stderr.strip()

    def pod(self, name, memory, time_share="100", selector=None):
        """A Pod with a claim to a device that the CEL selects."""
        wanted = {"deviceClassName": "paragpu", "capacity": {"requests": {"memory": memory, "time": time_share}}}
        if selector:
            wanted["selectors"] = [{"cel": {"expression": selector}}]
        template = {
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": {"name": name},
            "spec": {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": wanted}]}}},
        }  # fmt: skip
        self.call("POST", f"{RESOURCES}/namespaces/default/resourceclaimtemplates", template)
        container = {"name": "c", "image": "none", "resources": {"claims": [{"name": "gpu"}]}}
        spec = {"containers": [container], "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": name}]}
        self.call("POST", "/api/v1/namespaces/default/pods", {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})

    def placed(self, name):
        """The node and the claim of a Pod that is placed; None while it waits."""
        pod = self.find(f"/api/v1/namespaces/default/pods/{name}")
        if not pod or not pod["spec"].get("nodeName"):
            return None
        claim = pod["status"]["resourceClaimStatuses"][0]["resourceClaimName"]
        return pod["spec"]["nodeName"], self.find(f"{RESOURCES}/namespaces/default/resourceclaims/{claim}")

    def refused(self, name):
        """Did the scheduler look at a Pod, and find no place?"""
        status = self.find(f"/api/v1/namespaces/default/pods/{name}").get("status", {})
        return any(it.get("reason") == "Unschedulable" for it in status.get("conditions", []))

    def delete(self, name):
        """Deletes a Pod immediately, because there is no kubelet to end it."""
        self.call("DELETE", f"/api/v1/namespaces/default/pods/{name}?gracePeriodSeconds=0")

    def container(self, node, claim, *command):
        """A command as a container has it: the environment and the mounts of the
        CDI file, another user, and nothing of other claims."""
        uid = claim["metadata"]["uid"]
        with open(f"{self.folder}/{node}/cdi/{DRIVER}-{uid}.json", encoding="utf-8") as file:
            edits = json.load(file)["devices"][0]["containerEdits"]
        (mount,) = edits["mounts"]
        assert mount["hostPath"] == mount["containerPath"], mount
        stage = f"{self.folder}/stage-{uid}"
        environment = {
            "PATH": os.environ["PATH"],
            "LD_LIBRARY_PATH": os.environ["PARAGPU_TEST_LIBRARIES"],
            **dict(line.split("=", 1) for line in edits["env"]),
        }
        inside = ["unshare", "-m", "sh", "-ec", CONTAINER, "container", mount["hostPath"], stage, *command]
        return harness.owned(inside), environment
