"""A program of a lease, through libcuda.so.1.

usage: guest.py MODE
  run    adds numbers in rounds, and compares them: prints "round N" after each
  step   a round for each line of input; a line "break" breaks its connections instead
  take BYTES   allocates so much: prints "took" (and by how many hours its clock is off), or "refused"
Exit status: 0 fine, 1 a wrong number, 3 a CUDA error.
"""

import os
import socket
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "end_to_end"))
# pylint: disable=wrong-import-position
from driver import CudaError, Guest, say
from guest_program import advances


def clock():
    """By how many hours this program's clock differs from the kernel's."""
    with open("/proc/stat", encoding="ascii") as stat, open("/proc/uptime", encoding="ascii") as uptime:
        began = next(int(line.split()[1]) for line in stat if line.startswith("btime"))
        return round((time.time() - began - float(uptime.read().split()[0])) / 3600)


def main():
    """Executes the command line."""
    mode = sys.argv[1]
    guest = Guest()
    if mode == "take":
        try:
            guest.allocate(int(sys.argv[2]))
            say("took" if not (hours := clock()) else f"took, {hours:+d} h")
        except CudaError as error:
            say("refused" if error.code == 2 else f"failed with {error}")
        return
    rounds = advances(guest)
    if mode == "run":
        for done in rounds:
            say(f"round {done}")
    for line in sys.stdin:
        if line.strip() == "break":
            say(f"broke {broken()}")
        else:
            say(f"round {next(rounds)}")


def broken():
    """Breaks this process's TCP connections; how many."""
    count = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            with socket.socket(fileno=os.dup(int(name))) as connection:
                if connection.family in (socket.AF_INET, socket.AF_INET6):
                    connection.shutdown(socket.SHUT_RDWR)
                    count += 1
        except OSError:
            pass
    return count


if __name__ == "__main__":
    try:
        main()
    except CudaError as error:
        print(error, flush=True)
        sys.exit(3)
