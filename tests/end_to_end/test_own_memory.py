"""Programs whose own memory lies where device memory does."""

from .guests import OneDaemon

INVALID_VALUE, HOST = 1, 1
COPIES = {"to": [0, True], "of": [0, 0x77], "any way": [0, 0x78]}
REGISTRATION = [INVALID_VALUE, 0, 0, HOST, 0, 0x78]


class OwnMemory(OneDaemon):
    """The program over communicators of one host."""

    def test_it_stays_the_programs(self):
        for communicator in ("shm", "unix"):
            with self.subTest(communicator):
                said = self.said(communicator, "own_memory_program.py")
                self.assertTrue(said["apart"])
                self.assertEqual(said["copies"], 5 * [COPIES])
                self.assertEqual(said["registration"], 5 * [REGISTRATION])
        self.assertEqual(self.daemon.left(), [])
