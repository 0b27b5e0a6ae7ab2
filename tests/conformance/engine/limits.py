# SPDX-License-Identifier: Apache-2.0
"""Test that a container is held to its limits, and that what its processes may do to each other holds."""

from containerhost.engines.spec import Cpu, Memory, Mount
from tests import levels
from tests.conformance.engine import frame
from tests.conformance.engine.frame import EPERM, PYTHON, TIMEOUT, MiB

# Writes to the memory of a child process and reads it back; $1 is the user that the parent becomes before. Nothing of
# it is traced: that is how Open MPI and UCX copy large messages between the processes of one host.
READ_CHILD = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
class Vector(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("size", ctypes.c_size_t))
def call(name, ours):
    vectors = [Vector(ctypes.addressof(text), 4) for text in (ours, theirs)]
    done = getattr(libc, name)(child, ctypes.byref(vectors[0]), 1, ctypes.byref(vectors[1]), 1, 0)
    return os.strerror(ctypes.get_errno()) if done < 0 else ours.raw[:4].decode()
theirs = ctypes.create_string_buffer(b"kept")
end, ours = os.pipe()
child = os.fork()
if not child:
    os.close(ours)
    os.read(end, 1)  # until the parent has ended
    os._exit(0)
os.setuid(int(sys.argv[1]))
print(call("process_vm_writev", ctypes.create_string_buffer(b"sent")),
      call("process_vm_readv", ctypes.create_string_buffer(b"none")), sep=", ")
"""


@levels.exhaustive(frame.REPEATED, when=frame.INCUS)
class Limits(frame.DeviceFrame):
    def test_limits_hold_inside(self):
        self.running(cpu=Cpu(1, cores=frozenset({0}), share=50), limits={"nofile": "1024"})
        self.assertRegex(self.inside("c1", "cat", "/proc/1/status")[1], r"Cpus_allowed_list:\s0\n")
        self.assertRegex(self.inside("c1", "cat", "/proc/1/limits")[1], r"Max open files\s+1024\s+1024")

    def test_fork_bomb_ends_at_the_limit_of_processes(self):
        """Use a bomb that could not take the host with it either: 200 processes, which end by themselves."""
        self.running(processes=60)
        self.running("c2")
        bomb = "i=0; while [ $i -lt 200 ]; do sleep 120 > /dev/null 2>&1 < /dev/null & i=$((i+1)); done; echo all"
        done = self.engine.execute("c1", ["sh", "-c", bomb], b"", timeout=TIMEOUT)
        self.assertNotEqual((0, b"all\n"), (done.status, done.stdout))
        self.assertLessEqual(self.engine.metrics("c1").processes, 60)
        self.assertEqual(0, self.engine.execute("c2", ["sh", "-c", "exit 0"], b"", timeout=TIMEOUT).status)
        self.engine.delete("c1")
        self.assertFalse(self.engine.exists("c1"))

    def test_memory_is_not_more_than_asked(self):
        self.running(memory=Memory(32 * MiB))
        status, output = self.inside("c1", "sh", "-c",
                                     "x=$(head -c 67108864 /dev/zero | tr '\\0' a); echo survived")
        self.assertNotIn("survived", output)
        self.assertNotEqual(0, status)
        self.assertTrue(self.engine.metrics("c1").memory_peak <= 32 * MiB)

    def test_mounts_arrive_read_only(self):
        source = self.directory() / "drive"
        source.mkdir(exist_ok=True)
        (source / "meta").write_text("hello\n")
        self.running(mounts=(Mount("context", str(source), "/context"),))
        self.assertEqual((0, "hello\n"), self.inside("c1", "cat", "/context/meta"))
        self.assertNotEqual(0, self.inside("c1", "touch", "/context/more")[0])


    def test_processes_of_one_user_copy_each_others_memory_and_no_others(self):
        self.running(mounts=PYTHON)
        for user, expected in (("0", "sent, sent"), ("65534", f"{EPERM}, {EPERM}")):
            self.assertEqual((0, f"{expected}\n"), self.inside("c1", "/usr/bin/python3", "-c", READ_CHILD, user))
