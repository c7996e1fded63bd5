#!/usr/bin/env python3
"""What host and guest change at once stays atomic in a VM with one processor.

usage: locks.py paragpu.ko

There x86 kernels take the lock prefixes that .smp_locks lists out of their code,
because no other processor looks; but the host does. The driver shares words of
32 bits (compare-and-exchange) and pending bits (test-and-reset) with it, and
nothing of its own has these forms.
"""

import re
import subprocess
import sys

# What has to stay locked, and how often the driver does it at least: taking a
# channel and taking a list back; clearing a pending bit.
SHARED = {r"lock cmpxchg %e": 2, r"lock btr ": 1}


def objdump(module, *arguments):
    """Its output, line by line."""
    return subprocess.check_output(["objdump", *arguments, module], text=True).splitlines()


def main():
    """Exit status 1, with a sentence, where one is not locked or none is there."""
    (module,) = sys.argv[1:]
    removed = {
        int(found[1], 16)
        for found in (re.search(r"\.text\+0x([0-9a-f]+)$", line) for line in objdump(module, "-r", "-j", ".smp_locks"))
        if found
    }
    if not removed:
        sys.exit(f"locks: {module} has no .smp_locks: this is not what it was")
    code = objdump(module, "-d", "-j", ".text", "--no-show-raw-insn")
    for form, least in SHARED.items():
        places = [int(found[1], 16) for found in (re.match(rf"\s*([0-9a-f]+):\s+{form}", line) for line in code) if found]
        if len(places) < least:
            sys.exit(f"locks: '{form}' is there {len(places)} times, not {least}: look at {module} anew")
        for place in places:
            if place in removed:
                sys.exit(f"locks: '{form}' at {place:#x} loses its lock in a VM with one processor")
    print('{"test":"atomic-towards-the-host-on-one-processor","ok":true,"why":""}')


if __name__ == "__main__":
    main()
