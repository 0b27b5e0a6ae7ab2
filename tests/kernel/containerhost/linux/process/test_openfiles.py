# SPDX-License-Identifier: Apache-2.0
"""A tenant's process can have what it opened in places where nobody looks for it."""

import errno
import os
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from unittest import mock

import fixtures
import testtools

from containerhost.errors import HostActionFailed
from containerhost.linux.process import openfiles
from tests.frozengroups import SilentFuse

ZERO = (1, 5)
# A thread with its own file table has /dev/zero open or mapped; its process prints when, and perhaps ends its
# first thread. The number is CLONE_FILES.
HIDING = """
import ctypes, mmap, os, sys, threading, time
libc = ctypes.CDLL(None)
ready = threading.Event()
def hide():
    assert libc.unshare(0x400) == 0
    os.open("/dev/zero", os.O_RDONLY)
    if "map" in sys.argv:
        handle = os.open("/dev/zero", os.O_RDONLY)
        kept.append(mmap.mmap(handle, 4096, mmap.MAP_PRIVATE, mmap.PROT_READ))
        os.closerange(3, 64)
    ready.set()
    time.sleep(600)
kept = []
for _ in range(20):
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
threading.Thread(target=hide, daemon=True).start()
ready.wait()
print("ready", flush=True)
if "end" in sys.argv:
    libc.pthread_exit(None)
time.sleep(600)
"""
BOUND = """
import mmap, os, subprocess, sys, time
subprocess.run(["mount", "--bind", "/dev/zero", sys.argv[1]], check=True)
fd = os.open(sys.argv[1], os.O_RDONLY)
kept = mmap.mmap(fd, 4096, mmap.MAP_PRIVATE, mmap.PROT_READ)
os.closerange(3, 64)
print("ready", flush=True)
time.sleep(600)
"""


LOW = """
import ctypes, mmap, os, time
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
fd = os.open("/dev/zero", os.O_RDONLY)
MAP_FIXED = 0x10
assert libc.mmap(0x20000, 4096, mmap.PROT_READ, mmap.MAP_PRIVATE | MAP_FIXED, fd, 0) == 0x20000, ctypes.get_errno()
os.close(fd)
print("ready", flush=True)
time.sleep(600)
"""


def ready(test: testtools.TestCase, *command: str) -> int:
    """Start a process that says when it is ready, and end it with the test."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    test.addCleanup(process.wait)
    test.addCleanup(process.kill)
    test.addCleanup(process.stdout.close)
    test.assertEqual(b"ready\n", process.stdout.readline())
    return process.pid


class OpenFilesTest(testtools.TestCase):
    def hiding(self, *how: str) -> int:
        pid = ready(self, sys.executable, "-c", HIDING, *how)
        if "end" in how:
            while "Z" not in openfiles.lines(pid, "stat")[0].rpartition(")")[2].split()[0]:
                time.sleep(0.01)
        return pid

    def test_thread_with_a_table_of_its_own(self) -> None:
        self.assertIn(ZERO, openfiles.nodes(self.hiding(), stat.S_IFCHR))

    def test_process_whose_first_thread_has_ended(self) -> None:
        pid = self.hiding("end")
        self.assertIn(ZERO, openfiles.nodes(pid, stat.S_IFCHR))
        self.assertTrue(openfiles.mounted(pid))

    def test_mapping_under_another_path(self) -> None:
        """In a mount namespace of its own a tenant binds a node to any place."""
        place = Path(self.useFixture(fixtures.TempDir()).path) / "x"
        place.touch()
        pid = ready(self, "unshare", "--mount", sys.executable, "-c", BOUND, str(place))
        self.assertIn(ZERO, openfiles.nodes(pid, stat.S_IFCHR))

    def test_mapping_at_an_address_with_leading_zeros(self) -> None:
        pid = ready(self, sys.executable, "-c", LOW)
        self.assertIn(ZERO, openfiles.nodes(pid, stat.S_IFCHR))
        self.assertNotIn(ZERO, openfiles.nodes(pid, stat.S_IFCHR, opened=True))

    def test_too_many_files_to_look_at_in_time(self) -> None:
        self.assertRaises(TimeoutError, openfiles.nodes, os.getpid(), stat.S_IFCHR, 0.0)

    def test_mapping_of_a_process_whose_first_thread_has_ended(self) -> None:
        pid = self.hiding("end", "map")
        self.assertEqual({ZERO}, openfiles.nodes(pid, stat.S_IFCHR) - {(1, 3)})
        self.assertTrue(openfiles.mapped(pid))

    def test_one_of_the_threads_that_share_a_table(self) -> None:
        self.assertEqual(2, len(list(openfiles.tables(self.hiding()))))

    def test_process_that_cannot_be_looked_at_is_not_taken_for_gone(self) -> None:
        for patched in ("os.scandir", "os.listdir", "builtins.open"):
            with self.subTest(patched), mock.patch(patched, side_effect=OSError(errno.EMFILE, "too many files")):
                self.assertRaises(OSError, openfiles.nodes, os.getpid(), stat.S_IFCHR)

    def test_process_that_is_gone(self) -> None:
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
        self.assertEqual((set(), set(), set()), (openfiles.nodes(child, stat.S_IFCHR), openfiles.mounted(child),
                                                 openfiles.mapped(child)))


# A process passes /dev/zero to itself, and never receives it; or keeps it in an io_uring.
IN_FLIGHT = """
import ctypes, os, socket, sys, time
fd = os.open("/dev/zero", os.O_RDONLY)
if sys.argv[1] == "socket":
    ends = socket.socketpair()
    socket.send_fds(ends[0], [b"x"], [fd])
    ends[0].close()
elif sys.argv[1] == "io_uring":
    libc = ctypes.CDLL(None, use_errno=True)
    ring = libc.syscall(425, 1, (ctypes.c_char * 120)())
    assert ring >= 0 and libc.syscall(427, ring, 2, (ctypes.c_int * 1)(fd), 1) == 0, ctypes.get_errno()
os.close(fd)
print("ready", flush=True)
time.sleep(600)
"""


class InFlightTest(testtools.TestCase):
    def test_files_that_no_table_shows_are_seen(self) -> None:
        for how, expected in (("socket", True), ("io_uring", True), ("nowhere", False)):
            pid = ready(self, sys.executable, "-c", IN_FLIGHT, how)
            self.assertEqual((how, False), (how, ZERO in openfiles.nodes(pid, stat.S_IFCHR)))
            self.assertEqual((how, expected), (how, bool(openfiles.unlisted(pid))))

    def test_machine_that_lets_nobody_see_who_receives_is_told_what_to_do(self) -> None:
        """Yama's ptrace_scope of 3, which only a restart ends."""
        def refuse(pid: int, file: str) -> list[str]:
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

        self.useFixture(fixtures.MockPatchObject(openfiles, "table", refuse))
        self.assertIn("ptrace_scope", str(self.assertRaises(HostActionFailed, openfiles.receives, os.getpid())))


class FuseTest(testtools.TestCase):
    def test_file_system_whose_process_does_not_answer_does_not_hang_the_look(self) -> None:
        """As one that a process of a frozen container serves."""
        directory = self.useFixture(SilentFuse()).directory
        handle = os.open(directory, os.O_PATH | os.O_CLOEXEC)
        self.addCleanup(os.close, handle)
        thread = threading.Thread(target=openfiles.nodes, args=(os.getpid(), stat.S_IFCHR), daemon=True)
        thread.start()
        thread.join(10)
        self.assertFalse(thread.is_alive())
