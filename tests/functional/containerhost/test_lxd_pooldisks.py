# SPDX-License-Identifier: Apache-2.0
"""Further disks of the pool, in real containers."""

from containerhost import errors
from containerhost.engines.lxd.pooldisks import PoolDisks
from containerhost.engines.spec import PoolDisk
from tests.functional.containerhost.base import LxdTestCase, MiB
from tests.functional.lxd import POOL

LABELS = {"nova.uuid": "uuid-of-c1"}
PART = PoolDisk("ephemeral0", POOL, "c1-ephemeral0", "/ephemeral0")


class TestPoolDisks(LxdTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.disks = PoolDisks(self.engine.client, POOL)
        self.disks.ensure(PART.volume, 16 * MiB, LABELS)

    def write(self, megabytes: int) -> int:
        """Exit status of writing so much to the disk."""
        return self.inside("c1", "sh", "-c", f"dd if=/dev/urandom of=/ephemeral0/f bs=1M count={megabytes} && sync")[0]

    def test_held_to_its_size_until_it_is_enlarged(self) -> None:
        self.running("c1", parts=(PART,))
        self.assertEqual(0, self.write(8))
        self.assertNotEqual(0, self.write(32))
        self.disks.ensure(PART.volume, 64 * MiB, LABELS)
        self.assertEqual(0, self.write(32))

    def test_put_into_a_running_container_and_taken_out_with_its_content(self) -> None:
        self.running("c1")
        self.engine.attach("c1", PART)
        self.assertEqual(0, self.inside("c1", "sh", "-c", "echo mine > /ephemeral0/file")[0])
        self.assertRaises(errors.EngineError, self.disks.delete, PART.volume)
        self.engine.detach("c1", PART)
        self.assertNotEqual(0, self.inside("c1", "test", "-e", "/ephemeral0/file")[0])
        self.engine.attach("c1", PART)
        self.assertEqual((0, "mine\n"), self.inside("c1", "cat", "/ephemeral0/file"))
        self.engine.delete("c1")
        self.disks.delete(PART.volume)
        self.assertEqual((), self.disks.all())
