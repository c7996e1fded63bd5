"""Answers of the driver as CUDA documents them."""

from .guests import OneDaemon

INVALID_VALUE, INVALID_DEVICE, INVALID_HANDLE, NOT_PERMITTED = 1, 101, 400, 800
ILLEGAL_STATE, CAPTURE_UNSUPPORTED, INVALIDATED, UPDATE_FAILURE = 401, 900, 901, 910
VERSION_NOT_SUFFICIENT, PARAMETERS_CHANGED, ATTRIBUTES_CHANGED = 2, 5, 8
# A call and the end of the capture, in global, thread-local and relaxed mode.
UNSAFE = [CAPTURE_UNSUPPORTED, INVALIDATED] * 2 + [0, 0]
DEVICE, HOST, HOST_NUMA = 1, 2, 3

WANTED = {
    "of_a_librarys_module": {
        "unload": NOT_PERMITTED,
        "find": 0,
        "launch": 0,
        "unload the library": 0,
        "unload again": INVALID_HANDLE,
    },
    "of_images": {"copied": 0, "kept": 0, "file": 0, "kept file": INVALID_VALUE},
    "of_bus_ids": {
        "whole": [0, 0],
        "no function": [0, 0],
        # Domain 0, in which the software GPU is not.
        "no domain": [INVALID_DEVICE, -1],
        "no device": [INVALID_VALUE, -1],
        "neither": [INVALID_VALUE, -1],
    },
    "of_preferred_locations": {"host": HOST, "node": HOST_NUMA, "current node": HOST_NUMA, "device": DEVICE},
    "of_arrays": {
        "as wide": 0,
        "wider": INVALID_VALUE,
        "higher": INVALID_VALUE,
        "deeper": INVALID_VALUE,
        "more layers": INVALID_VALUE,
        "gather": 0,
        "gather in a volume": INVALID_VALUE,
        "a wider surface": INVALID_VALUE,
    },
    "of_shared_memory": {"create": 0, "map": 0, "give access": 0, "share": 0, "set": 0, "contents": [6, 5]},
    "of_access": {"as set": True, "read": 0, "contents": 7},
    "of_uploads": {"with flags": INVALID_VALUE, "with parameters": 0},
    "of_odd_widths": {
        **{"whole": 0, "to": 0, "from": 0, "back": 0, "part": [99] * 5 + [0]},
        "contents": [99] * 7 + list(range(7, 16)) + [99] * 7 + list(range(23, 32)),
    },
    # What follows was also observed on an H200 (driver 580.159).
    "of_nodes": {
        "fits": [0, 0, 0, 0],
        "freed": [INVALID_VALUE] * 4,
        "past the end": [INVALID_VALUE] * 4,
        "pageable": [INVALID_VALUE] * 4,
        "no bytes": [INVALID_VALUE] * 3 + [0],
        "no rows": [INVALID_VALUE] * 3 + [0],
        # An executable graph's copy has one row, before and after.
        "rows": [0, 0, INVALID_VALUE, 0],
        "row past the slice": [INVALID_VALUE] * 4,
        "no array": [INVALID_VALUE] * 4,
        "set": 0,
        **dict.fromkeys(("set none", "set no rows", "set past the pitch"), INVALID_VALUE),
        **dict.fromkeys(("set past the end", "set off", "set pageable"), INVALID_VALUE),
    },
    "of_updates": {
        "cooperative": [UPDATE_FAILURE, ATTRIBUTES_CHANGED, True],
        "no longer": [UPDATE_FAILURE, ATTRIBUTES_CHANGED, True],
        "priority": [0, 0],
        "priority in use": [UPDATE_FAILURE, ATTRIBUTES_CHANGED, True],
        "width": [0, 0],
        "rows": [UPDATE_FAILURE, PARAMETERS_CHANGED, True],
        "width of rows": [UPDATE_FAILURE, PARAMETERS_CHANGED, True],
        "same rows": [0, 0],
    },
    "of_captures": {
        **dict.fromkeys(("query another", "wait for another", "create an array"), UNSAFE),
        **dict.fromkeys(("set a limit", "instantiate"), UNSAFE),
        "set": [0] * 6,
        "launch nothing": [INVALID_VALUE, INVALIDATED] * 3,
        "copy past the end": [INVALID_VALUE, 0] * 3,
        "destroy its graph": ILLEGAL_STATE,
        "destroy it then": 0,
        "wait for its event": INVALID_VALUE,
    },
    "of_entry_points": {
        "legacy": "cuLaunchKernel",
        "too early": {"status": VERSION_NOT_SUFFICIENT},
        "per thread": "cuLaunchKernel_ptsz",
        "both": "cuLaunchKernel_ptsz",
        "without streams": "cuInit",
        "unknown flag": INVALID_VALUE,
        "newest": "cuMemAlloc_v2",
    },
    "of_launches": {"without parameters": INVALID_VALUE, "must have a cluster": INVALID_VALUE, "blocks": 0},
}


class Answers(OneDaemon):
    """The program over communicators of one host."""

    def test_answers_are_the_documented_ones(self):
        for communicator in ("shm", "unix"):
            with self.subTest(communicator):
                self.assertEqual(self.said(communicator, "answers_program.py"), WANTED)
        self.assertEqual(self.daemon.left(), [])
