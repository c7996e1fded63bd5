"""Somebody between programs and their workers who reads the frames: counts round trips, and can
hold back all that the host sends."""

import socket
import threading

from wire import wire


class Link:
    """Passes connections on, and counts their round trips."""

    def __init__(self, target):
        host, _, port = target.rpartition(":")
        self.target = (host, int(port))
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        self.open, self.lock, self.ends = threading.Event(), threading.Lock(), [self.listener]
        self.open.set()
        # Calls of the guest that followed an answer, and whether one has arrived since the last.
        self.trips, self.answered = 0, False
        threading.Thread(target=self.accept, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.open.set()
        for end in self.ends:
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            end.close()

    def accept(self):
        """Connects both ends of each connection."""
        while True:
            try:
                guest, _ = self.listener.accept()
            except OSError:
                return
            host = socket.create_connection(self.target)
            for end in (guest, host):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.ends += [guest, host]
            for ends in ((guest, host, self.of_guest), (host, guest, self.of_host)):
                threading.Thread(target=self.pass_on, args=ends, daemon=True).start()

    @staticmethod
    def pass_on(source, destination, note):
        """Passes frames on until the connection ends."""
        with source.makefile("rb") as frames:
            try:
                while head := frames.read(wire.HEADER.size):
                    length, kind, slot, _ = wire.HEADER.unpack(head)
                    payload = frames.read(length)
                    note(kind, slot)
                    destination.sendall(head + payload)
                destination.shutdown(socket.SHUT_WR)
            except OSError:
                pass

    def of_guest(self, kind, slot):
        """A frame of the guest; if it awaits an answer, it has a slot."""
        with self.lock:
            if slot and kind in wire.CALLS and self.answered:
                self.trips += 1
                self.answered = False

    def of_host(self, kind, _):
        """A frame of the host, held back while the link is closed."""
        self.open.wait()
        with self.lock:
            self.answered |= bool(kind & wire.REPLY)
