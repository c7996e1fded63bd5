"""A fake paragpud of an earlier version of the wire, as seen by an arriving lease: bytes,
declared in wire.py. It grants any lease, and refuses sessions of others.

usage: older.py FOLDER NAME ADDRESS STATS
  FOLDER has the host's sockets, and beside it tls; STATS is what `paragpu status` hears.
Runs until it is ended; prints a line for each refusal.
"""

import json
import os
import socket
import ssl
import struct
import sys
import threading

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
# pylint: disable=wrong-import-position
from wire import wire

OLDER = (wire.VERSION[0], wire.VERSION[1] - 1, 0)


def words(numbers):
    """A version as sentences have it."""
    return ".".join(map(str, numbers))


def read(path):
    """A file's text."""
    with open(path, encoding="utf-8") as file:
        return file.read()


def lines(listener, answer):
    """Answers lines of JSON, each connection in a thread."""

    def serve(connection):
        with connection:
            for line in connection.makefile("rb"):
                connection.sendall(json.dumps(answer(json.loads(line))).encode() + b"\n")

    while True:
        threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()


def arrivals(listener, context):
    """Refuses connections after the first bytes, which are the same in every version."""
    while True:
        plain, _ = listener.accept()
        try:
            with context.wrap_socket(plain, server_side=True) as connection:
                length, _, _, _ = wire.HEADER.unpack(wire.exactly(connection, wire.HEADER.size))
                payload = wire.exactly(connection, length)
                theirs = struct.unpack("<HHH", payload[8:14])
                if payload[:8] != wire.MAGIC:
                    raise ValueError("no hello")
                reason = f"the peer speaks version {words(theirs)} of the protocol, this side {words(OLDER)}: install the same release".encode()
                answer = struct.pack("<HHHI", *OLDER, len(reason)) + reason
                connection.sendall(wire.HEADER.pack(len(answer), wire.REFUSAL, 0, 0) + answer)
                print(f"refused {words(theirs)}", flush=True)
                # What it still sends is read, so that the answer is not lost.
                while connection.recv(4096):
                    pass
        except (OSError, ValueError) as error:
            print(f"lost: {error}", flush=True)


def main():
    """Serves the host's three sockets."""
    folder, name, address, stats = sys.argv[1:]
    tls = os.path.join(os.path.dirname(folder), "tls")

    def control(request):
        match request["command"]:
            case "version":
                return {"answer": "version", "daemon": "0.0.9", "protocol": words(OLDER), "pid": os.getpid()}
            case "stats":
                return json.loads(stats)
            case "list":
                return {"answer": "sessions", "sessions": []}
            case "claim":
                return {
                    "answer": "lease",
                    "name": request["again"] or {"vm": f"lease-0-{request['job']}", "serial": 1},
                    "memory": request["memory"],
                    "gpu": 0,
                    "address": f"{address}:7474",
                    "arrivals": f"tcp://{address}:7475",
                    "authority": read(f"{tls}/ca.pem"),
                    "certificate": read(f"{tls}/{name}.pem"),
                    "expires": 1 << 40,
                }
        return {"answer": "error", "error": f"bad message: unknown variant `{request['command']}`"}

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(f"{tls}/{name}.pem", f"{tls}/{name}.key")
    context.load_verify_locations(f"{tls}/ca.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    for socket_name in ("lease.sock", "control.sock"):
        path = f"{folder}/{socket_name}"
        if os.path.exists(path):
            os.remove(path)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(path)
        listener.listen(16)
        threading.Thread(target=lines, args=(listener, control), daemon=True).start()
    arrivals(socket.create_server((address, 7475)), context)


if __name__ == "__main__":
    main()
