# SPDX-License-Identifier: Apache-2.0
import os

from containerhost import errors
from containerhost.engines.spec import Cpu, IoLimit, Memory, RootDisk, Security
from containerhost.linux.process.pins import pins
from containerhost.linux.sysfs import Host
from tests.functional.containerhost.base import LxdTestCase, MiB
from tests.functional.lxd import POOL


class TestLife(LxdTestCase):
    def test_what_cannot_be_is_told_apart(self):
        for wanted, action in (
            (errors.EngineNotFound, lambda: self.engine.pool("nowhere")),
            (errors.EngineNotFound, lambda: self.engine.create(self.spec("c2", root=RootDisk("nowhere")))),
            (errors.SpecError, lambda: self.engine.create(self.spec("c2", cpu=Cpu(1, cores=frozenset({0, 4095}))))),
        ):
            self.assertRaises(wanted, action)
        self.assertEqual((), self.engine.containers())

    def test_the_list_tells_the_last_start(self):
        self.running()
        (state,) = self.engine.containers()
        self.assertIsNotNone(state.last_used)

    def test_delete_waits_for_a_creation_that_lost_its_caller(self):
        body = {"name": "c1", "type": "container", "profiles": [], "config": {},
                "source": {"type": "image", "fingerprint": self.lxd.imported()},
                "devices": {"root": {"type": "disk", "path": "/", "pool": POOL}}}
        # As left by a killed nova-compute: requested, but not awaited.
        self.engine.client.request("post", "instances", asked="create", json=body)
        self.engine.delete("c1")
        self.assertFalse(self.engine.exists("c1"))
        for operation in self.engine.client.operations():
            if operation["status_code"] < 200:
                self.engine.client.wait(operation, "settle")
        self.assertFalse(self.engine.exists("c1"))

    def test_a_container_that_cannot_start_says_why(self):
        self.engine.create(self.spec(limits={"memlock": str(1 << 60)}))
        error = self.assertRaises(errors.EngineError, self.engine.start, "c1")
        reason, _, rest = str(error).partition("memlock")
        self.assertTrue(rest, str(error))
        self.assertNotIn("forkstart", reason, "what LXD says of its own command comes after the reason")


class TestLimits(LxdTestCase):
    def test_limits_hold_together(self):
        last = max(os.sched_getaffinity(0))
        self.running(cpu=Cpu(1, cores=frozenset({last}), share=50), memory=Memory(96 * MiB),
                     root=RootDisk(POOL, size=64 * MiB, io=IoLimit(read_iops=500, write_bytes=10 * MiB)),
                     limits={"nofile": "1024"})
        self.assertEqual({"c1": frozenset({last})}, pins(Host()))
        status, output = self.inside("c1", "dd", "if=/dev/urandom", "of=/big", "bs=1M", "count=100")
        self.assertEqual(1, status)
        self.assertRegex(output, "quota exceeded|No space left")

    def test_unprivileged_by_default_and_privileged_when_told(self):
        self.running("c1")
        self.running("c2", security=Security(privileged=True))
        first = {name: self.inside(name, "cat", "/proc/self/uid_map")[1].split()[1] for name in ("c1", "c2")}
        self.assertEqual("0", first["c2"])
        self.assertNotEqual("0", first["c1"])
