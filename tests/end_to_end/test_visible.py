"""CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER among several GPUs: CUDA follows
them, NVML does not."""

import json
import os
import subprocess
import sys
import unittest

import harness

PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "nvml_program.py")
NO_DEVICE, INVALID_DEVICE = 100, 101


class Visible(unittest.TestCase):
    """One daemon with three software GPUs."""

    @classmethod
    def setUpClass(cls):
        cls.daemon = cls.enterClassContext(harness.Daemon("--set=software.devices=3"))
        cls.uuids = cls.ask()["nvml"]

    @classmethod
    def ask(cls, **environment):
        """The devices that the program sees with these variables."""
        inherited = cls.daemon.guest_environment("unix")
        for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"):
            inherited.pop(name, None)
        command = [sys.executable, PROGRAM, "visible"]
        done = subprocess.run(command, env=inherited | environment, capture_output=True, text=True, timeout=60)
        if done.returncode:
            raise AssertionError(done.stdout + done.stderr)
        return json.loads(done.stdout) | {"said": done.stderr}

    def seen(self, value, **environment):
        """The places of the devices that CUDA shows under a list."""
        found = self.ask(CUDA_VISIBLE_DEVICES=value, **environment)
        self.assertEqual(found["nvml"], self.uuids, "NVML heeds the variable")
        self.assertEqual(found["init"], 0 if found["cuda"] else NO_DEVICE)
        return [self.uuids.index(uuid) for uuid in found["cuda"]]

    def unique(self, place):
        """The shortest beginning that only this device's UUID has."""
        uuid = self.uuids[place]
        others = [other for other in self.uuids if other != uuid]
        lengths = range(len("GPU-") + 1, len(uuid) + 1)
        return next(uuid[:length] for length in lengths if not any(other.startswith(uuid[:length]) for other in others))

    def test_without_the_variable_all_are_seen(self):
        found = self.ask()
        self.assertEqual(len(set(self.uuids)), 3)
        self.assertEqual((found["init"], found["cuda"]), (0, self.uuids))

    def test_numbers_choose_and_order(self):
        for value, want in (("1", [1]), ("2,0", [2, 0]), (" 1 , 2 ", [1, 2]), ("2,1,0", [2, 1, 0])):
            with self.subTest(value):
                self.assertEqual(self.seen(value), want)

    def test_the_first_that_is_invalid_ends_the_list(self):
        for value, want in (("0,7,1", [0]), ("2,-1,0", [2]), ("1,x", [1]), ("1,,0", [1]), ("GPU-zz,0", [])):
            with self.subTest(value):
                self.assertEqual(self.seen(value), want)

    def test_an_empty_list_shows_none(self):
        for value in ("", "-1", "NoDevFiles"):
            with self.subTest(value):
                self.assertEqual(self.seen(value), [])

    def test_uuids_whole_and_cut(self):
        one, two = self.uuids[1], self.uuids[2]
        lists = {
            one: [1],
            f"{two},{one}": [2, 1],
            f"GPU-{one[4:].upper()}": [1],
            self.unique(2): [2],
            f"{self.unique(1)},0": [1, 0],
        }
        for value, want in lists.items():
            with self.subTest(value):
                self.assertEqual(self.seen(value), want)

    def test_a_beginning_of_several_uuids_names_none(self):
        common = os.path.commonprefix(self.uuids)
        value = common if len(common) > len("GPU-") else "GPU-"
        self.assertEqual(self.seen(value), [])

    def test_a_list_that_repeats_a_device_is_refused(self):
        # As NVIDIA's driver does.
        for value in ("0,0,1", "0,0x0", f"{self.uuids[1]},1"):
            with self.subTest(value):
                found = self.ask(CUDA_VISIBLE_DEVICES=value)
                self.assertEqual((found["init"], found["cuda"]), (INVALID_DEVICE, []))

    def test_numbers_are_read_as_c_reads_them(self):
        for value in ("1gpu0", "1;2", "+1", "01", "\t1", "4294967297"):
            with self.subTest(value):
                self.assertEqual(self.seen(value), [1])

    def test_parts_of_devices_are_refused_by_name(self):
        found = self.ask(CUDA_VISIBLE_DEVICES="MIG-GPU-1/1/0")
        self.assertEqual((found["init"], found["cuda"]), (NO_DEVICE, []))
        self.assertIn("not supported: MIG-GPU-1/1/0 in CUDA_VISIBLE_DEVICES", found["said"])

    def test_numbers_count_in_the_order_that_is_set(self):
        for order in ("PCI_BUS_ID", "FASTEST_FIRST"):
            everything = self.ask(CUDA_DEVICE_ORDER=order)["cuda"]
            with self.subTest(order):
                self.assertEqual(sorted(everything), sorted(self.uuids))
                want = [self.uuids.index(everything[2]), self.uuids.index(everything[0])]
                self.assertEqual(self.seen("2,0", CUDA_DEVICE_ORDER=order), want)
                self.assertEqual(self.seen(self.uuids[1], CUDA_DEVICE_ORDER=order), [1])
