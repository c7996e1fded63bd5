"""A slow link: passes TCP connections on and delivers every byte late, in both directions.

usage: relay.py TARGET SECONDS

What netem does to a network, for a machine whose kernel lacks it: it adds a delay and
limits no rate. A process of its own, so that no benchmark's interpreter holds it up. Prints
the address at which it listens, and ends with its standard input.
"""

import collections
import select
import socket
import subprocess
import sys
import time

# Most bytes that are received at once.
CHUNK = 1 << 20
# Bytes that each socket may hold, so that no rate is limited by waiting for a turn.
ROOM = 8 << 20


class Relay:
    """Connections to `address` pass on to `target`, each byte `delay` seconds later."""

    def __init__(self, target, delay):
        command = [sys.executable, __file__, target, str(delay)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)  # pylint: disable=consider-using-with
        self.address = self.process.stdout.readline().strip()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.communicate()


class Direction:
    """What is on its way to a socket: when it is due, and the bytes. Empty ones are the end."""

    def __init__(self, destination):
        self.destination, self.under_way, self.is_open = destination, collections.deque(), True

    def take(self, source, delay):
        """Notes when what has come has to arrive."""
        try:
            data = source.recv(CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self.is_open = bool(data)
        self.under_way.append((time.monotonic() + delay, memoryview(data)))

    def deliver(self, now):
        """Sends what is due, as far as the socket accepts it."""
        while self.under_way and self.under_way[0][0] <= now:
            due, data = self.under_way.popleft()
            try:
                if not data:
                    self.destination.shutdown(socket.SHUT_WR)
                    return
                sent = self.destination.send(data)
            except BlockingIOError:
                sent = 0
            except OSError:
                self.under_way.clear()
                return
            if sent < len(data):
                self.under_way.appendleft((due, data[sent:]))
                return


def connect(near, target, directions):
    """Connects a new connection with its target."""
    host, _, port = target.rpartition(":")
    far = socket.create_connection((host, int(port)))
    for source, destination in ((near, far), (far, near)):
        source.setblocking(False)
        source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for side in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            source.setsockopt(socket.SOL_SOCKET, side, ROOM)
        directions[source] = Direction(destination)


def main(target, delay):
    """Passes on until the standard input ends."""
    listener = socket.create_server(("127.0.0.1", 0))
    print(f"127.0.0.1:{listener.getsockname()[1]}", flush=True)
    directions = {}
    while True:
        now = time.monotonic()
        heads = [(way.under_way[0][0], way.destination) for way in directions.values() if way.under_way]
        late = [destination for due, destination in heads if due <= now]
        next_due = min((due - now for due, _ in heads if due > now), default=None)
        sources = [source for source, way in directions.items() if way.is_open]
        ready, writable, _ = select.select([listener, sys.stdin, *sources], late, [], next_due)
        if sys.stdin in ready:
            return
        for source in ready:
            if source is listener:
                connect(listener.accept()[0], target, directions)
            else:
                directions[source].take(source, delay)
        for way in directions.values():
            if way.destination in writable:
                way.deliver(time.monotonic())


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
