#!/usr/bin/env python3
"""Unpack NVIDIA's part of wheels into one tree: unpack_wheels.py WHEELS TREE"""

import pathlib
import stat
import sys
import zipfile

PREFIXES = ("nvidia/cu13/", "nvidia/cudnn/")


def target_of(name, tree):
    """Where an archive member belongs in the tree, or None if it is not part of it."""
    prefix = next((prefix for prefix in PREFIXES if name.startswith(prefix)), None)
    if prefix is None or name.endswith("/"):
        return None
    relative = pathlib.PurePosixPath(name[len(prefix):])
    if relative.is_absolute() or ".." in relative.parts:
        raise SystemExit(f"unpack_wheels.py: refusing the path {name!r}")
    if relative.parts[0] == ".metadata":
        return None
    return tree / relative


def unpack(wheel, tree):
    """Unpack one wheel; returns the number of files written."""
    written = 0
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.infolist():
            target = target_of(member.filename, tree)
            if target is None:
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(archive.read(member))
            executable = (member.external_attr >> 16) & stat.S_IXUSR
            if executable or target.parent.name == "bin":
                target.chmod(0o755)
            written += 1
    return written


def main():
    wheels, tree = (pathlib.Path(argument) for argument in sys.argv[1:3])
    for wheel in sorted(wheels.glob("*.whl")):
        print(f"  {wheel.name}: {unpack(wheel, tree)} files", flush=True)


if __name__ == "__main__":
    main()
