"""An independent implementation of paragpu's wire protocol.

Written from protocol/README.md, not from the Rust sources: a mistake in one
reader of the wire shows as a difference from the other.
"""

import mmap
import os
import socket
import struct
import time

HEADER = struct.Struct("<IHHQ")
MAX_PAYLOAD = 262144
# Number of received bytes after which the guest acknowledges.
MAX_UNACKNOWLEDGED = 262144
REPLY = 0x8000

HEARTBEAT = 0xFFFE
HELLO, WELCOME, REFUSAL, DATA, HOST_FUNC, OUTPUT, GOODBYE, RECEIVED, TAKEN, MOVE, HOME, STAYS = range(0x7F00, 0x7F0C)

MAGIC = b"paragpu\0"
VERSION = (0, 7, 0)
# In place of the offset of a window: there is none.
NO_WINDOW = 2**64 - 1
# Seconds that the host may take on a machine that does much else.
PATIENCE = 60

# Number: (name, [(parameter, type)], reply). Types as in protocol/README.md;
# handles are all u64.
CALLS = {
    0x0001: ("Ping", [("value", "u64")], "u64"),
    0x0002: ("SnapshotDevice", [("ordinal", "u32")], "DeviceSnapshot"),
    0x0003: ("DeviceAsk", [("figure", "u32"), ("arguments", "u8x4")], "DeviceAnswer"),
    0x0004: ("DeviceUse", [], "DeviceUsage"),
    0x0101: ("MemMap", [("address", "u64"), ("size", "u64")], ""),
    0x0102: ("MemUnmap", [("address", "u64")], ""),
    0x0103: ("MemGetInfo", [], "MemoryInfo"),
    0x0104: ("HostMap", [("offset", "u64"), ("size", "u64")], ""),
    0x0105: ("HostUnmap", [("offset", "u64")], ""),
    0x0106: ("ShadowCreate", [("address", "u64"), ("size", "u64")], ""),
    0x0107: ("ShadowDestroy", [("address", "u64")], ""),
    0x0108: ("ShadowWrite", [("address", "u64"), ("data", "Bytes")], ""),
    0x0109: ("ShadowRead", [("address", "u64"), ("size", "u64")], ""),
    0x010A: ("ShadowPatch", [("address", "u64"), ("runs", "Bytes")], ""),
    0x010B: ("MemAlias", [("address", "u64"), ("size", "u64"), ("memory", "u64"), ("access", "u32")], ""),
    0x010C: ("MemAliasEnd", [("address", "u64")], ""),
    0x010D: ("MemOffer", [("address", "u64")], "MemoryOffer"),
    0x010E: ("MemTake", [("address", "u64"), ("size", "u64"), ("token", "u8x16")], ""),
    0x010F: ("MemLeave", [("address", "u64")], ""),
    0x0116: ("PeerOffer", [], "PeerName"),
    0x0118: ("ShadowChanges", [("after", "u32"), ("ranges", "Bytes")], "ChangedRuns"),
    0x011A: ("ShadowAgree", [("address", "u64"), ("runs", "Bytes")], ""),
    0x0119: ("ShadowJoin", [("address", "u64"), ("offset", "u64")], ""),
    0x0117: ("PeerAsk", [("token", "u8x16")], "PeerAttributes"),
    0x0114: ("FileMap", [("address", "u64"), ("size", "u64"), ("offset", "u64"), ("file", "u64")], ""),
    0x0115: ("FileUnmap", [("address", "u64")], ""),
    0x0201: ("CopyToDevice", [("destination", "u64"), ("stream", "u64"), ("data", "Bytes")], ""),
    0x0202: ("CopyFromDevice", [("source", "u64"), ("size", "u64"), ("stream", "u64")], ""),
    0x0203: (
        "Copy",
        [("destination", "u64"), ("source", "u64"), ("size", "u64"), ("stream", "u64"), ("token", "u32")],
        "",
    ),
    0x0204: (
        "CopyRect",
        [
            ("destination", "CopyEnd"),
            ("source", "CopyEnd"),
            ("extent", "u64x3"),
            ("stream", "u64"),
            ("token", "u32"),
        ],
        "",
    ),
    0x0205: (
        "CopyRectToDevice",
        [("destination", "CopyEnd"), ("extent", "u64x3"), ("stream", "u64"), ("data", "Bytes")],
        "",
    ),
    0x0206: ("CopyRectFromDevice", [("source", "CopyEnd"), ("extent", "u64x3"), ("stream", "u64")], ""),
    0x0207: (
        "Memset",
        [
            ("destination", "u64"),
            ("pitch", "u64"),
            ("value", "u32"),
            ("element", "u8"),
            ("width", "u64"),
            ("height", "u64"),
            ("stream", "u64"),
        ],
        "",
    ),
    0x0208: ("WaitToken", [("token", "u32")], ""),
    0x0209: ("CopyPagesToDevice", [("destination", "u64"), ("list", "u32"), ("size", "u64"), ("stream", "u64")], ""),
    0x020A: ("CopyPagesFromDevice", [("source", "u64"), ("list", "u32"), ("size", "u64"), ("stream", "u64")], ""),
    0x020B: ("CheckPages", [("list", "u32"), ("value", "u64")], ""),
    0x0301: ("ArrayCreate", [("array", "u64"), ("shape", "ArrayShape")], ""),
    0x0302: ("ArrayDestroy", [("array", "u64")], ""),
    0x0303: ("TextureCreate", [("texture", "u64"), ("spec", "TextureSpec")], "u64"),
    0x0304: ("TextureDestroy", [("texture", "u64")], ""),
    0x0305: ("SurfaceCreate", [("surface", "u64"), ("array", "u64"), ("level", "u32")], "u64"),
    0x0306: ("SurfaceDestroy", [("surface", "u64")], ""),
    0x0307: ("TensorMapEncode", [("map", "TensorMap")], "u8x128"),
    0x0308: ("TensorMapReplace", [("map", "u8x128"), ("address", "u64")], "u8x128"),
    0x0401: ("ImageQuery", [("hash", "u8x32"), ("size", "u64")], "bool"),
    0x0402: ("ImageWrite", [("hash", "u8x32"), ("size", "u64"), ("offset", "u64"), ("data", "Bytes")], ""),
    0x0403: ("ModuleLoad", [("module", "u64"), ("hash", "u8x32"), ("options", "Bytes")], "Text"),
    0x0404: ("ModuleUnload", [("module", "u64")], ""),
    0x0405: ("FunctionGet", [("function", "u64"), ("module", "u64"), ("name", "Text")], "FunctionInfo"),
    0x0406: ("FuncSetAttribute", [("function", "u64"), ("attribute", "u32"), ("value", "i32")], ""),
    0x0407: ("FuncSetCacheConfig", [("function", "u64"), ("config", "u32")], ""),
    0x0408: ("GlobalGet", [("module", "u64"), ("name", "Text")], "GlobalInfo"),
    0x0409: (
        "OccupancyMaxActiveBlocksPerMultiprocessorWithFlags",
        [("function", "u64"), ("block_size", "i32"), ("dynamic_shared", "u64"), ("flags", "u32")],
        "i32",
    ),
    0x040A: ("OccupancyAvailableDynamicSMemPerBlock", [("function", "u64"), ("blocks", "i32"), ("block_size", "i32")], "u64"),
    0x040B: (
        "OccupancyClusters",
        [
            ("function", "u64"),
            ("grid", "u32x3"),
            ("block", "u32x3"),
            ("dynamic_shared", "u32"),
            ("cluster", "u32x3"),
        ],
        "i32",
    ),
    0x040C: ("ModuleFunctions", [("module", "u64"), ("first", "u32")], "FunctionNames"),
    0x040D: ("ModuleGetFunctionCount", [("module", "u64")], "u32"),
    0x040E: (
        "OccupancyClusterSize",
        [("function", "u64"), ("grid", "u32x3"), ("block", "u32x3"), ("dynamic_shared", "u32")],
        "i32",
    ),
    0x040F: ("ImageLink", [("options", "Bytes"), ("inputs", "Bytes")], "LinkedImage"),
    0x0410: ("ImageRead", [("hash", "u8x32"), ("offset", "u64")], "Bytes"),
    0x0411: ("ManagedGet", [("module", "u64"), ("name", "Text")], "GlobalInfo"),
    0x0501: (
        "Launch",
        [
            ("function", "u64"),
            ("stream", "u64"),
            ("grid", "u32x3"),
            ("block", "u32x3"),
            ("dynamic_shared", "u32"),
            ("flags", "u32"),
            ("cluster", "u32x3"),
            ("preferences", "Bytes"),
            ("parameters", "Bytes"),
        ],
        "",
    ),
    0x0601: ("StreamCreate", [("stream", "u64"), ("flags", "u32"), ("priority", "i32")], ""),
    0x0602: ("StreamDestroy", [("stream", "u64")], ""),
    0x0603: ("StreamSynchronize", [("stream", "u64")], ""),
    0x0604: ("StreamQuery", [("stream", "u64")], ""),
    0x0605: ("StreamWaitEvent", [("stream", "u64"), ("event", "u64")], ""),
    0x0606: ("StreamMemory", [("stream", "u64"), ("operations", "Bytes")], ""),
    0x0607: ("StreamSignal", [("stream", "u64"), ("token", "u32")], ""),
    0x0608: ("StreamSetAttribute", [("stream", "u64"), ("attribute", "u32"), ("value", "u8x64")], ""),
    0x0701: ("EventCreate", [("event", "u64"), ("flags", "u32")], ""),
    0x0702: ("EventDestroy", [("event", "u64")], ""),
    0x0703: ("EventRecord", [("event", "u64"), ("stream", "u64")], ""),
    0x0704: ("EventSynchronize", [("event", "u64")], ""),
    0x0705: ("EventQuery", [("event", "u64")], ""),
    0x0706: ("EventElapsedTime", [("start", "u64"), ("end", "u64")], "f32"),
    0x0801: ("ContextSynchronize", [], ""),
    0x0802: ("CtxSetLimit", [("limit", "u32"), ("value", "u64")], ""),
    0x0803: ("CtxGetLimit", [("limit", "u32")], "u64"),
    0x0804: ("TopologyGet", [], "u8x256"),
    0x0805: ("SmResourceGet", [], "SmResource"),
    0x0806: (
        "SmResourceSplit",
        [("green", "u64"), ("groups", "u32"), ("flags", "u32"), ("least", "u32")],
        "SmGroups",
    ),
    0x0807: ("GreenCreate", [("green", "u64"), ("count", "u32"), ("way", "Bytes")], "SmResource"),
    0x0808: ("GreenDestroy", [("green", "u64")], ""),
    0x0809: ("GreenStreamCreate", [("stream", "u64"), ("green", "u64"), ("priority", "i32")], ""),
    0x080A: ("CtxResetPersistingL2Cache", [], ""),
    0x0901: ("HostFuncLaunch", [("stream", "u64"), ("id", "u64")], ""),
    0x0902: ("HostFuncDone", [("id", "u64")], ""),
    0x0903: ("HostFuncSignal", [("stream", "u64"), ("id", "u64"), ("pair", "u32"), ("value", "u32")], ""),
    0x0A01: ("GraphBegin", [("graph", "u64")], ""),
    0x0A02: ("GraphNodes", [("graph", "u64"), ("first", "u32"), ("nodes", "Bytes")], ""),
    0x0A03: ("GraphInstantiate", [("graph", "u64"), ("nodes", "u32")], ""),
    0x0A04: ("GraphLaunch", [("graph", "u64"), ("stream", "u64")], ""),
    0x0A05: ("GraphNodeUpdate", [("graph", "u64"), ("node", "u32"), ("call", "u16"), ("work", "Bytes")], ""),
    0x0A06: ("GraphNodeEnable", [("graph", "u64"), ("node", "u32"), ("enabled", "bool")], ""),
    0x0A07: ("GraphDestroy", [("graph", "u64")], ""),
    0x0A08: (
        "GraphConditional",
        [("condition", "u64"), ("kind", "u8"), ("value", "u32"), ("assigns", "bool"), ("bodies", "Bytes")],
        "",
    ),
    0x0A09: ("GraphNodeUpdates", [("updates", "Bytes")], ""),
}
NUMBERS = {name: number for number, (name, _, _) in CALLS.items()}

NUMBER_TYPES = {"u8": "B", "u16": "H", "u32": "I", "u64": "Q", "i32": "i", "i64": "q", "f32": "f", "bool": "?"}
RECORDS = {
    "DeviceAnswer": [("code", "u32"), ("values", "u64x5"), ("text", "Text")],
    "DeviceUsage": [("limit", "u64"), ("used", "u64"), ("time", "u64"), ("processes", "Bytes")],
    "MemoryInfo": [("free", "u64"), ("total", "u64")],
    "PeerName": [("token", "u8x16")],
    "PeerAttributes": [("values", "u64x5")],
    "MemoryOffer": [("base", "u64"), ("size", "u64"), ("token", "u8x16")],
    "GlobalInfo": [("address", "u64"), ("size", "u64")],
    "ChangedRuns": [("complete", "bool"), ("runs", "Bytes")],
    "FunctionNames": [("total", "u32"), ("names", "Bytes")],
    "LinkInput": [("kind", "u32"), ("name", "Text"), ("options", "Bytes"), ("hash", "u8x32")],
    "LinkedImage": [("hash", "u8x32"), ("size", "u64"), ("log", "Text")],
    "FunctionInfo": [("attributes", "Bytes"), ("parameters", "Bytes")],
    "DeviceSnapshot": [
        ("driver_version", "i32"),
        ("total_memory", "u64"),
        ("uuid", "u8x16"),
        ("name", "Text"),
        ("pci_bus_id", "Text"),
        ("attributes", "Bytes"),
    ],
    "GraphNode": [("call", "u16"), ("after", "Bytes"), ("work", "Bytes")],
    "LinearEnd": [("address", "u64"), ("pitch", "u64"), ("rows", "u64")],
    "ArrayEnd": [("array", "u64"), ("level", "u32"), ("origin", "u64x3")],
    "ArrayShape": [
        ("width", "u64"),
        ("height", "u64"),
        ("depth", "u64"),
        ("format", "u32"),
        ("channels", "u32"),
        ("flags", "u32"),
        ("levels", "u32"),
    ],
    "SmResource": [("count", "u32"), ("least", "u32"), ("alignment", "u32")],
    "SmGroups": [("groups", "u32"), ("group", "SmResource"), ("remaining", "SmResource")],
    "SmSplit": [("groups", "u32"), ("flags", "u32"), ("least", "u32"), ("members", "u8x32")],
    "Tensor": [
        ("data_type", "u32"),
        ("rank", "u32"),
        ("address", "u64"),
        ("dimensions", "u64x5"),
        ("strides", "u64x4"),
        ("element_strides", "u64x5"),
    ],
    "TensorBox": [
        ("kind", "u32"),
        ("extent", "u64x5"),
        ("lower", "u64x3"),
        ("upper", "u64x3"),
        ("channels", "u32"),
        ("pixels", "u32"),
        ("mode", "u32"),
    ],
    "TensorMap": [
        ("tensor", "Tensor"),
        ("part", "TensorBox"),
        ("interleave", "u32"),
        ("swizzle", "u32"),
        ("promotion", "u32"),
        ("fill", "u32"),
    ],
    "Hello": [
        ("magic", "u8x8"),
        ("major", "u16"),
        ("minor", "u16"),
        ("patch", "u16"),
        ("transport", "u8"),
        ("device", "u32"),
        ("token", "u8x16"),
        ("received", "u64"),
        ("pid", "u32"),
        ("window", "u64"),
        ("room", "u64"),
    ],
    "Welcome": [
        ("major", "u16"),
        ("minor", "u16"),
        ("patch", "u16"),
        ("session", "u64"),
        ("token", "u8x16"),
        ("reconnect", "u32"),
        ("device_count", "u32"),
        ("taken", "u64"),
        ("region_size", "u64"),
        ("shares_window", "bool"),
        ("wants_pinned", "bool"),
    ],
    "Refusal": [("major", "u16"), ("minor", "u16"), ("patch", "u16"), ("reason", "Text")],
}
ALTERNATIVES = {"CopyEnd": ["LinearEnd", "ArrayEnd"]}


def exactly(connection, count):
    """So many bytes of a socket."""
    data = b""
    while len(data) < count:
        part = connection.recv(count - len(data))
        if not part:
            raise ConnectionError("the connection ended")
        data += part
    return data


class WireError(Exception):
    """The bytes do not match the documentation."""


def encode(kind, value):
    """One field as bytes."""
    if kind == "":
        return b""
    if kind in NUMBER_TYPES:
        return struct.pack("<" + NUMBER_TYPES[kind], value)
    if kind == "Bytes":
        return struct.pack("<I", len(value)) + bytes(value)
    if kind == "Text":
        return encode("Bytes", value.encode())
    if kind in RECORDS:
        return b"".join(encode(part, value[name]) for name, part in RECORDS[kind])
    if kind in ALTERNATIVES:
        tag, inner = value
        return bytes([tag]) + encode(ALTERNATIVES[kind][tag], inner)
    base, count = kind.split("x")
    if base == "u8":
        if len(value) != int(count):
            raise WireError(f"{kind} of {len(value)} bytes")
        return bytes(value)
    return struct.pack(f"<{count}{NUMBER_TYPES[base]}", *value)


def decode(kind, data, at=0):
    """The field that starts at `at`, and where the next one starts."""

    def take(count):
        if at + count > len(data):
            raise WireError(f"{kind}is truncated")
        return data[at : at + count]

    if kind == "":
        return None, at
    if kind in NUMBER_TYPES:
        layout = struct.Struct("<" + NUMBER_TYPES[kind])
        return layout.unpack(take(layout.size))[0], at + layout.size
    if kind in ("Bytes", "Text"):
        (count,) = struct.unpack("<I", take(4))
        at += 4
        run = bytes(take(count))
        return (run.decode() if kind == "Text" else run), at + count
    if kind in RECORDS:
        record = {}
        for name, part in RECORDS[kind]:
            record[name], at = decode(part, data, at)
        return record, at
    base, count = kind.split("x")
    if base == "u8":
        return bytes(take(int(count))), at + int(count)
    layout = struct.Struct(f"<{count}{NUMBER_TYPES[base]}")
    return layout.unpack(take(layout.size)), at + layout.size


def encode_call(name, /, **arguments):
    """A call's payload."""
    _, parameters, _ = CALLS[NUMBERS[name]]
    if set(arguments) != {parameter for parameter, _ in parameters}:
        raise WireError(f"{name} takes {parameters}")
    return b"".join(encode(kind, arguments[parameter]) for parameter, kind in parameters)


class Failed(Exception):
    """A reply with a status other than success."""

    def __init__(self, status, call, detail):
        super().__init__(f"status {status} from call {call:#06x}: {detail}")
        self.status, self.call, self.detail = status, call, detail


class Session:
    """A guest's side of a session over a stream socket."""

    def __init__(self, address, device=0, version=VERSION, deadline=PATIENCE, resumes=None, context=None, source=None, pid=1):
        family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
        self.socket = socket.socket(family, socket.SOCK_STREAM)
        self.socket.settimeout(deadline)
        if family == socket.AF_INET:
            # As in guests, a call does not wait for earlier ones.
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if source:
            self.socket.bind((source, 0))
        self.socket.connect(address)
        if context:
            # Names the host as its certificate does.
            self.socket = context.wrap_socket(self.socket, server_hostname="127.0.0.1")
        self.sequence = resumes.sequence if resumes else 0
        self.received = resumes.received if resumes else 0
        self.untold = 0
        self.output = b""
        major, minor, patch = version
        hello = dict(
            magic=MAGIC,
            major=major,
            minor=minor,
            patch=patch,
            transport=1,
            device=device,
            token=resumes.welcome["token"] if resumes else bytes(16),
            received=self.received,
            pid=pid,
            window=NO_WINDOW,
            room=0,
        )
        self.send_frame(HELLO, 0, 0, encode("Hello", hello))
        kind, _, _, payload = self.receive_frame()
        if kind == REFUSAL:
            raise ConnectionRefusedError(self.whole("Refusal", payload)["reason"])
        if kind != WELCOME:
            raise WireError(f"{kind:#06x} instead of a welcome")
        self.welcome = self.whole("Welcome", payload)

    @staticmethod
    def whole(kind, payload):
        value, end = decode(kind, payload)
        if end != len(payload):
            raise WireError(f"{len(payload) - end} bytes after {kind}")
        return value

    def send_frame(self, kind, slot, sequence, payload):
        self.socket.sendall(HEADER.pack(len(payload), kind, slot, sequence) + payload)

    def receive_exactly(self, count):
        data = bytearray()
        while len(data) < count:
            part = self.socket.recv(count - len(data))
            if not part:
                raise ConnectionError("the host closed the connection")
            data += part
        return bytes(data)

    def receive_frame(self):
        length, kind, slot, sequence = HEADER.unpack(self.receive_exactly(HEADER.size))
        if length > MAX_PAYLOAD:
            raise WireError(f"frame of {length} bytes")
        payload = self.receive_exactly(length)
        if kind & REPLY or kind in (DATA, HOST_FUNC, OUTPUT):
            self.received += 1
            self.untold += HEADER.size + length
            if self.untold >= MAX_UNACKNOWLEDGED:
                self.untold = 0
                self.send_frame(RECEIVED, 0, 0, struct.pack("<Q", self.received))
        elif kind in (TAKEN, HOME, HEARTBEAT):
            return self.receive_frame()
        return kind, slot, sequence, payload

    def read_to_end(self):
        """Reads until the host ends the session; raises TimeoutError if it does not."""
        try:
            while True:
                self.receive_frame()
        except TimeoutError:
            raise
        except OSError:
            pass

    def post(self, name, /, **arguments):
        """Sends a posted call."""
        self.sequence += 1
        self.send_frame(NUMBERS[name], 0, self.sequence, encode_call(name, **arguments))

    def call(self, name, /, slot=1, **arguments):
        """Sends a synchronous call and returns its reply and the data that came before it."""
        self.sequence += 1
        number = NUMBERS[name]
        self.send_frame(number, slot, self.sequence, encode_call(name, **arguments))
        data = {}
        while True:
            kind, got_slot, _, payload = self.receive_frame()
            if kind == OUTPUT:
                self.output += payload[4:]
            elif kind == DATA and got_slot == slot:
                (offset,) = struct.unpack_from("<Q", payload)
                data[offset] = payload[8:]
            elif kind == number | REPLY and got_slot == slot:
                break
            else:
                raise WireError(f"unexpected frame {kind:#06x} for slot {got_slot}")
        (status,) = struct.unpack_from("<I", payload)
        if status != 0:
            (failed,) = struct.unpack_from("<H", payload, 4)
            detail, end = decode("Text", payload, 6)
            if end != len(payload):
                raise WireError("bytes after a failure")
            raise Failed(status, failed, detail)
        reply, end = decode(CALLS[number][2], payload, 4)
        if end != len(payload):
            raise WireError(f"{len(payload) - end} bytes after the reply of {name}")
        return reply, b"".join(data[offset] for offset in sorted(data))

    def close(self):
        self.socket.close()


class Shared:
    """A guest's side of a session over rings in shared memory, in one thread.

    Offsets as in the device's header file.
    """

    TAIL, HEAD, WAITS = 0x080, 0x0C0, 0x100
    BACK_TAIL, BACK_HEAD, BACK_WAITS = 0x180, 0x1C0, 0x200

    def __init__(self, path, deadline=PATIENCE, resumes=None, window=NO_WINDOW, room=0):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(deadline)
        self.socket.connect(path)
        major, minor, patch = VERSION
        hello = dict(magic=MAGIC, major=major, minor=minor, patch=patch, transport=2, device=0)
        self.sequence, self.received = (resumes.sequence, resumes.received) if resumes else (0, 0)
        hello.update(token=resumes.welcome["token"] if resumes else bytes(16), received=self.received, pid=1, window=window, room=room)
        payload = encode("Hello", hello)
        self.socket.sendall(HEADER.pack(len(payload), HELLO, 0, 0) + payload)
        data, self.fds, _, _ = socket.recv_fds(self.socket, 4096, 3)
        length, kind, _, _ = HEADER.unpack_from(data)
        if kind != WELCOME or len(data) != HEADER.size + length or len(self.fds) != 3:
            raise WireError(f"no welcome with three descriptors: {kind:#06x}")
        self.welcome = Session.whole("Welcome", data[HEADER.size :])
        self.region = mmap.mmap(self.fds[0], self.welcome["region_size"])
        if self.region[:4] != b"PGCH":
            raise WireError("the region has another magic")
        self.ring, self.ring_size = struct.unpack_from("<QQ", self.region, 0x10)
        self.back, self.back_size = struct.unpack_from("<QQ", self.region, 0x20)

    def word(self, offset):
        """A u64 index."""
        return struct.unpack_from("<Q", self.region, offset)[0]

    def send_frame(self, kind, slot, sequence, payload):
        """Writes a frame that does not reach the ring's end."""
        tail = self.word(self.TAIL)
        frame = HEADER.pack(len(payload), kind, slot, sequence) + payload
        frame += bytes(-len(frame) % 16)
        at = self.ring + tail % self.ring_size
        self.region[at : at + len(frame)] = frame
        struct.pack_into("<Q", self.region, self.TAIL, tail + len(frame))
        os.write(self.fds[1], struct.pack("<Q", 1))

    def post(self, name, /, **arguments):
        """Sends a posted call."""
        self.sequence += 1
        self.send_frame(NUMBERS[name], 0, self.sequence, encode_call(name, **arguments))

    def call(self, name, /, **arguments):
        """Sends a synchronous call, looks for its reply, and returns it."""
        self.sequence += 1
        self.send_frame(NUMBERS[name], 1, self.sequence, encode_call(name, **arguments))
        limit = time.monotonic() + PATIENCE
        while self.word(self.BACK_TAIL) == self.word(self.BACK_HEAD):
            if time.monotonic() > limit:
                raise WireError(f"no reply to {name}")
        head = self.word(self.BACK_HEAD)
        at = self.back + head % self.back_size
        length, kind, _, _ = HEADER.unpack_from(self.region, at)
        payload = bytes(self.region[at + HEADER.size : at + HEADER.size + length])
        struct.pack_into("<Q", self.region, self.BACK_HEAD, head + HEADER.size + length + -(HEADER.size + length) % 16)
        self.received += 1
        if kind != NUMBERS[name] | REPLY or payload[:4] != bytes(4):
            raise WireError(f"{kind:#06x} instead of a reply to {name}")
        reply, _ = decode(CALLS[NUMBERS[name]][2], payload, 4)
        return reply

    def scribble(self, source, number):
        """Breaks the ring to the host in one of the ways there are."""
        tail = self.word(self.TAIL)
        broken = {
            0: lambda: struct.pack_into("<Q", self.region, self.TAIL, source.getrandbits(64) | 1),
            1: lambda: struct.pack_into("<Q", self.region, self.TAIL, tail + self.ring_size + 16),
            2: lambda: struct.pack_into("<Q", self.region, self.TAIL, max(tail - 16, 0)),
            3: lambda: self.send_frame(NUMBERS["Ping"], 1, self.sequence + 1, source.randbytes(31)),
            4: lambda: self.oversized(source),
            5: lambda: struct.pack_into("<Q", self.region, self.TAIL, tail + 8),
        }
        broken[number % len(broken)]()
        os.write(self.fds[1], struct.pack("<Q", 1))

    def oversized(self, source):
        """A frame that says it is longer than any may be."""
        tail = self.word(self.TAIL)
        at = self.ring + tail % self.ring_size
        self.region[at : at + 16] = HEADER.pack(MAX_PAYLOAD + 1 + source.getrandbits(31), 1, 1, self.sequence + 1)
        struct.pack_into("<Q", self.region, self.TAIL, tail + 64)

    def ended(self, seconds):
        """Does the host close the connection within that time?"""
        self.socket.settimeout(seconds)
        try:
            while self.socket.recv(4096):
                pass
            return True
        except TimeoutError:
            return False
        except OSError:
            return True

    def close(self):
        """Gives everything back."""
        self.region.close()
        for fd in self.fds:
            os.close(fd)
        self.socket.close()
