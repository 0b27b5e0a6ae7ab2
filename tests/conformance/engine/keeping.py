# SPDX-License-Identifier: Apache-2.0
"""Test that no container keeps a device where no table of open files lists it: nobody else is given it meanwhile."""

import functools
import shutil

import fixtures

from containerhost import errors
from containerhost.allocation.allocator import DeviceAllocator
from containerhost.allocation.refusals import Request
from containerhost.allocation.sharedmemory import JobMemory, SharedMemories
from containerhost.engines.spec import Mount
from containerhost.inventory.scan import HostView
from containerhost.linux.process import deviceusers
from tests import levels
from tests.conformance.engine import frame
from tests.conformance.engine.frame import PYTHON, MiB
from tests.waiting import await_that

# Something open is sent to a socket of another container, which does not receive it.
RECEIVE = """
import os, pathlib, socket, time
end = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
end.bind("/shared/end")
os.chmod("/shared/end", 0o777)
pathlib.Path("/shared/ready").touch()
time.sleep(600)
"""
SEND = """
import socket
end = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
end.connect("/shared/end")
with open("/dev/null") as file:
    socket.send_fds(end, [b"x"], [file.fileno()])
"""
# One thread closes a socket, in which a file waits, while another one has begun to receive from it.
PEEK = """
import array, os, socket, threading, time
near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
with open("/dev/null") as file:  # urgent data, which is ordinary data once there is more of it
    far.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [file.fileno()]))], socket.MSG_OOB)
def receive():
    try:
        ((level, kind, data),) = near.recvmsg(1, 20, socket.MSG_PEEK)[1]
        print(os.readlink("/proc/self/fd/%d" % array.array("i", data)[0]), flush=True)
    except Exception as error:
        print(error, flush=True)
thread = threading.Thread(target=receive)
thread.start()
time.sleep(0.5)
os.close(near.fileno())
print("closed", flush=True)
while not os.path.exists("/tmp/go"):
    time.sleep(0.05)
far.send(b"y", socket.MSG_OOB)
thread.join(5)
print("end", flush=True)
os._exit(0)
"""
HOLD = """
import os, time
fd = os.open("/dev/nvidiactl", os.O_PATH)
time.sleep(600)
"""
HIDE = """
import os, socket, sys, time
ends = socket.socketpair()
fd = os.open(sys.argv[1], os.O_PATH)
socket.send_fds(ends[0], [b"x"], [fd])
os.close(fd)
print("hidden", flush=True)
time.sleep(600)
"""
# Prints why there is no ring, also for a call as programs of 32 bits make it: push rbx; mov eax, 425; mov ebx, 1;
# xor ecx, ecx; int 0x80; pop rbx; ret. The kernel would return EFAULT.
MAKE_RING = """
import ctypes, errno, mmap, os
libc = ctypes.CDLL(None, use_errno=True)
ring = libc.syscall(425, 1, (ctypes.c_char * 120)())
print(errno.errorcode[ctypes.get_errno()] if ring < 0 else "a ring")
if os.uname().machine == "x86_64":
    code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    code.write(bytes.fromhex("53b8a9010000bb0100000031c9cd805bc3"))
    call = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))
    print(errno.errorcode.get(-call()))
"""


@levels.exhaustive(frame.REPEATED, when=frame.INCUS)
class Keeping(frame.DeviceFrame):
    def test_no_process_makes_an_io_uring(self):
        """No search would find a disk that is kept in one."""
        self.running(mounts=PYTHON)
        status, output = self.inside("c1", "/usr/bin/python3", "-c", MAKE_RING)
        self.assertEqual((0, {"ENOSYS"}), (status, set(output.split())))

    def test_file_that_a_thread_has_begun_to_receive_is_found_or_lost(self):
        """The kernel freezes that thread in its place (control groups of version 1), or the call begins anew, and the
        socket is gone."""
        self.running(mounts=PYTHON)
        self.inside("c1", "sh", "-c", f"mkdir -p /tmp; /usr/bin/python3 -c '{PEEK}' > /tmp/out 2>&1 &")
        await_that(lambda: "closed" in self.inside("c1", "cat", "/tmp/out")[1], "it waits to receive")
        users = deviceusers.users_in([self.engine.pid("c1")], lambda pid: None)
        self.inside("c1", "touch", "/tmp/go")
        await_that(lambda: "end" in self.inside("c1", "cat", "/tmp/out")[1], "it has received")
        received = "/dev/null" in self.inside("c1", "cat", "/tmp/out")[1]
        self.assertEqual(received, "recvmsg" in str(users), users)

    def test_gpu_is_not_free_while_its_driver_has_a_client(self):
        """By ``/dev/nvidiactl`` a process reaches what it has allocated of a GPU whose own node it has closed."""
        gpu, own = self.gpus[0].id, self.consumer("c1")
        grants = self.allocator.acquire([Request(gpu)], own)
        self.running("c1", parts=grants, mounts=PYTHON)
        self.inside("c1", "sh", "-c", f"/usr/bin/python3 -c '{HOLD}' > /dev/null 2>&1 &")
        await_that(lambda: self.inside("c1", "pgrep", "-f", "O_PATH")[0] == 0, "it runs")
        self.engine.detach("c1", grants[0])
        (complaint,) = self.allocator.release_device(gpu, own, self.engine.pid("c1"))
        self.assertIn("in use by another client", complaint)
        self.inside("c1", "pkill", "-f", "O_PATH")
        self.assertEqual((), self.allocator.release_device(gpu, own, self.engine.pid("c1")))

    def test_gpu_that_no_driver_revokes_is_free_once_its_container_has_ended(self):
        """Whichever way its tenant keeps it: here in a socket, in which no search sees it."""
        gpu, own = self.gpus[0].id, self.consumer("c1")
        grants = self.allocator.acquire([Request(gpu)], own)
        self.running("c1", parts=grants, mounts=PYTHON)
        (node, *_) = (node.path for node in grants[0].own_nodes)
        self.inside("c1", "sh", "-c", f"mkdir -p /tmp; /usr/bin/python3 -c '{HIDE}' {node} > /tmp/hidden 2>&1 &")
        await_that(lambda: self.inside("c1", "cat", "/tmp/hidden")[1].strip() == "hidden", "it is in the socket")
        self.engine.detach("c1", grants[0])
        self.useFixture(fixtures.MockPatch("containerhost.vendors.nvidia.reset.reset", return_value=False))
        (complaint,) = self.allocator.release_device(gpu, own, self.engine.pid("c1"))
        self.assertIn("may still be in use by", complaint)
        self.assertRaises(errors.DeviceHeld, self.allocator.acquire, [Request(gpu)], self.consumer("c2"))
        self.assertRaises(errors.ScrubFailed, self.allocator.repair.clean, gpu)
        self.assertEqual((), self.allocator.reconciler.clean_ended(own))
        self.assertEqual({gpu: complaint.split(":")[0]}, {
            name: (record.blocked or "").split(":")[0] for name, record in self.store.records().items()})
        self.engine.stop("c1", timeout=frame.TIMEOUT, force=True)
        self.assertEqual(((), {}), (self.allocator.reconciler.clean_ended(own), self.store.records()))

    def test_device_may_wait_in_a_socket_of_a_container_that_shares_memory(self):
        """Its sender is gone by then, and no member of the job's memory any more."""
        memories = SharedMemories(self.store.directory, "test", self.engine.name, self.privileged())
        allocator = DeviceAllocator(self.store, HostView, self.privileged(), self.engine.held,
                                    holders=functools.partial(memories.first_processes, self.engine.pid))
        shared = self.directory() / "shared"
        shared.mkdir()
        shared.chmod(0o1777)
        self.addCleanup(shutil.rmtree, shared)
        for name in ("c1", "c2"):
            memories.join(JobMemory("tenant", "job", MiB), self.consumer(name))
            self.addCleanup(memories.leave, self.consumer(name))
        given = {"c1": allocator.acquire([Request(self.gpus[0].id)], self.consumer("c1")), "c2": ()}
        for name, parts in given.items():
            self.running(name, parts=parts, mounts=(*PYTHON, Mount("shared", str(shared), "/shared", read_only=False)))
        self.inside("c2", "sh", "-c", f"/usr/bin/python3 -c '{RECEIVE}' > /dev/null 2>&1 &")
        await_that((shared / "ready").exists, "the socket is there")
        self.assertEqual((0, ""), self.inside("c1", "/usr/bin/python3", "-c", SEND))
        self.engine.delete("c1")
        memories.leave(self.consumer("c1"))
        self.useFixture(fixtures.MockPatch("containerhost.vendors.nvidia.reset.reset", return_value=False))
        (complaint,) = allocator.release(self.consumer("c1"))
        self.assertIn("a container that shares memory with", complaint)
        self.engine.delete("c2")
        self.assertEqual((), allocator.release(self.consumer("c1")))
        memories.leave(self.consumer("c2"))
        self.assertEqual(frozenset(), memories.mates(self.consumer("c1")))
