"""A slow link: passes TCP connections on and delivers every byte late, in both directions.

What netem does to a network, for a machine whose kernel lacks it: it adds a delay and
limits no rate.
"""

import queue
import socket
import threading
import time

# Most bytes that are passed on at once.
CHUNK = 1 << 18


class Relay:
    """Connections to `address` pass on to `target`, each byte `delay` seconds later."""

    def __init__(self, target, delay):
        host, _, port = target.rpartition(":")
        self.target, self.delay, self.open = (host, int(port)), delay, []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self.accept, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for each in (self.listener, *self.open):
            # Threads that wait in it notice a shutdown, not a close.
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            each.close()

    def accept(self):
        """Connects both ends of each connection."""
        while True:
            try:
                near, _ = self.listener.accept()
            except OSError:
                return
            far = socket.create_connection(self.target)
            for one, other in ((near, far), (far, near)):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self.open.append(one)
                on_the_way = queue.SimpleQueue()
                threading.Thread(target=self.take, args=(one, on_the_way), daemon=True).start()
                threading.Thread(target=self.deliver, args=(on_the_way, other), daemon=True).start()

    def take(self, source, on_the_way):
        """Notes when each piece has to arrive; an empty one is the end."""
        data = True
        while data:
            try:
                data = source.recv(CHUNK)
            except OSError:
                data = b""
            on_the_way.put((time.monotonic() + self.delay, data))

    @staticmethod
    def deliver(on_the_way, destination):
        """Sends each piece when it is due, together with those that are due by then."""
        due, data = on_the_way.get()
        while data:
            time.sleep(max(0, due - time.monotonic()))
            pieces, now = [], time.monotonic()
            while data and due <= now:
                pieces.append(data)
                try:
                    due, data = on_the_way.get_nowait()
                except queue.Empty:
                    due = None
                    break
            try:
                destination.sendall(b"".join(pieces))
            except OSError:
                return
            if due is None:
                due, data = on_the_way.get()
        try:
            destination.shutdown(socket.SHUT_WR)
        except OSError:
            pass
