# SPDX-License-Identifier: Apache-2.0
"""The records of a job's shared memory; the mounts are in the functional tests of each driver."""

import json
from pathlib import Path

import fixtures
import testtools

from containerhost import errors
from containerhost.allocation.sharedmemory import JobMemory, SharedMemories, require_size
from containerhost.allocation.store import AllocationStore, Consumer
from containerhost.inventory.scan import scan
from containerhost.linux.storage import memorymounts
from containerhost.privileged import Privileged
from tests.unit.containerhost.allocation.allocatorcase import host

MIB = 1 << 20


class Recording(Privileged):
    """Keeps in a set what would be mounted; a mount that is to fail fails."""

    def __init__(self):
        self.there, self.fails = {}, False

    def mount_memory(self, name, size):
        if self.fails:
            raise errors.HostActionFailed("no memory")
        self.there[name] = size

    def make_memory_view(self, name):
        self.there[name] = None

    def unmount_memory(self, name):
        self.there.pop(name, None)

    def present_memories(self):
        return tuple(sorted(self.there))


def member(number):
    return Consumer("nova", "lxd", f"c{number}", f"uuid-{number}")


def job(name="wave", tenant="project", size=4):
    return JobMemory(tenant, name, size * MIB)


class SharedMemoryTest(testtools.TestCase):
    def setUp(self):
        super().setUp()
        self.owners = Path(self.useFixture(fixtures.TempDir()).path)
        self.mounts = Recording()
        self.memories = self.another()

    def another(self, driver="nova", engine="lxd"):
        return SharedMemories(self.owners, driver, engine, self.mounts)

    def shares(self):
        return {name for name, size in self.mounts.there.items() if size}

    def test_names_hold_nothing_of_the_tenant_and_tell_all_apart(self):
        hostile = [job(), job(tenant="other"), job("../../etc"), job("a/b"), job('wave", "'), job("project", "wave")]
        paths = {self.another(driver).path(each) for each in hostile for driver in ("nova", "lxdone")}
        self.assertEqual(2 * len(hostile), len(paths))
        for path in paths:
            self.assertTrue(memorymounts.MEMORY.fullmatch(Path(path).name), path)
            self.assertEqual(memorymounts.MOUNTS, Path(path).parent)
        view = self.memories.view(job(), member(1))
        self.assertTrue(memorymounts.VIEW.fullmatch(Path(view).name), view)

    def test_mounted_from_the_first_member_to_the_last(self):
        for _ in range(2):
            for number in (1, 2):
                self.memories.join(job(), member(number))
        self.assertEqual((1, 3), (len(self.shares()), len(self.mounts.there)))
        for _ in range(2):
            self.memories.leave(member(1))
            self.assertEqual((1, {member(2)}), (len(self.shares()), self.another().members()))
        self.memories.leave(member(2))
        self.assertEqual(({}, []), (self.mounts.there, list((self.owners / "memory").glob("*.json"))))

    def test_who_left_with_devices_had_mates_while_one_is_there(self):
        devices = AllocationStore(self.owners)
        for number in (1, 2, 3):
            self.memories.join(job(), member(number))
        self.memories.join(job("other"), member(4))
        gpu = scan(host("small")).get("0000:3b:00.0")
        devices.claim([gpu], member(1), lambda device: ())
        for number in (1, 3):
            self.memories.leave(member(number))
        self.assertEqual([{member(2)}, set(), set()], [self.memories.mates(member(number)) for number in (1, 2, 4)])
        self.assertEqual({10, 20}, self.memories.first_processes({"c1": 10, "c2": 20}.get, member(1)))
        self.assertEqual({20}, self.memories.first_processes(self.gone, member(1)))
        devices.release(gpu.id, member(1))
        self.memories.join(job(), member(3))
        self.memories.leave(member(3))
        self.assertEqual(set(), self.memories.mates(member(1)))
        self.memories.leave(member(2))
        self.assertEqual({Path(self.memories.path(job("other"))).name}, self.shares())

    def test_damaged_record_concerns_no_other_job(self):
        self.memories.join(job(), member(1))
        self.memories.join(job(), member(2))
        self.memories.join(job("other"), member(3))
        path = Path(self.memories.path(job("other")))
        next((self.owners / "memory").glob(f"{path.name}*")).write_text("{")
        self.assertEqual([{member(2)}, set()], [self.memories.mates(member(number)) for number in (1, 4)])
        self.assertRaises(errors.AllocationsUnreadable, self.memories.mates, member(3))

    @staticmethod
    def gone(name):
        if name == "c1":
            raise errors.EngineNotFound(name)
        return 20

    def test_another_size_is_for_the_only_member(self):
        self.memories.join(job(), member(1))
        self.memories.join(job(size=8), member(1))
        self.assertEqual([8 * MIB], [size for size in self.mounts.there.values() if size])
        error = self.assertRaises(errors.SpecError, self.memories.join, job(), member(2))
        self.assertIn("8 MiB, and 4 MiB are requested", str(error))
        self.assertEqual({member(1)}, self.memories.members())

    def test_member_of_another_job_leaves_the_first(self):
        self.memories.join(job(), member(1))
        self.memories.join(job("next"), member(1))
        self.assertEqual({Path(self.memories.path(job("next"))).name}, self.shares())

    def test_failed_mount_leaves_nothing(self):
        self.mounts.fails = True
        self.assertRaises(errors.HostActionFailed, self.memories.join, job(), member(1))
        self.assertEqual((frozenset(), {}), (self.memories.members(), self.mounts.there))

    def test_reconcile_removes_members_that_are_gone_and_mounts_without_a_record(self):
        for number, name in ((1, "wave"), (2, "wave"), (3, "gone"), (4, "lost")):
            self.memories.join(job(name), member(number))
        other = self.another("onedock", "docker")
        other.join(job(), Consumer("onedock", "docker", "one-1", "1"))
        (self.owners / "memory" / f"{Path(self.memories.path(job('lost'))).name}.json").unlink()
        self.memories.reconcile(lambda each: each in (member(1), member(4)))
        self.assertEqual({Path(each).name for each in (self.memories.path(job()), other.path(job()))}, self.shares())
        self.assertEqual({member(1)}, self.memories.members())

    def test_record_that_cannot_be_read_is_told_and_kept(self):
        self.memories.join(job(), member(1))
        (file,) = (self.owners / "memory").glob("*.json")
        for text in ("{", "[]", "[" * 100_000, json.dumps({"size": 1}), '{"size": Infinity, "members": []}',
                     json.dumps({"size": 1, "members": [{"driver": "nova"}]})):
            file.write_text(text)
            for act in (lambda: self.memories.join(job(), member(2)), lambda: self.memories.leave(member(1))):
                error = self.assertRaises(errors.AllocationsUnreadable, act)
                self.assertIn(str(file), str(error))
            self.assertEqual((text, 1), (file.read_text(), len(self.shares())))

    def test_record_that_cannot_be_read_keeps_nobody_else_from_leaving(self):
        self.memories.join(job(), member(1))
        (file,) = (self.owners / "memory").glob("*.json")
        file.write_text("{")
        self.memories.join(job("other"), member(2))
        self.memories.leave(member(2))
        self.memories.leave(member(3))
        self.assertEqual({Path(self.memories.path(job())).name}, self.shares())

    def test_size_is_at_most_the_members_memory(self):
        for size in (0, MIB - 1, 65 * MIB):
            self.assertRaises(errors.SpecError, require_size, size, 64 * MIB, "hpc:shared_memory")
        for size in (MIB, 64 * MIB):
            require_size(size, 64 * MIB, "hpc:shared_memory")
