# SPDX-License-Identifier: Apache-2.0
"""nova-compute killed (-9) while it attaches or detaches a volume: detaching it then leaves nothing."""

import contextlib
import stat
from pathlib import Path

import fixtures
import nova.conf
import testtools
from nova import exception, objects

from containerhost.engines.spec import ContainerSpec, Cpu, Memory, RootDisk
from nova_lxd_ext import backend, conf
from nova_lxd_ext.instance import labels
from nova_lxd_ext.storage import connections
from nova_lxd_ext.storage.volumeconfig import Volume
from nova_lxd_ext.storage.volumes import Volumes
from tests import levels
from tests.functional import lxd, storage
from tests.functional.nova.test_killed import killed_at_points
from tests.unit.nova import records

CONF = nova.conf.CONF
conf.register()

PATH = "/dev/vdb"
FEWEST_STEPS = 8


class KilledVolumesTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.lxd = self.useFixture(lxd.Lxd())
        state = Path(self.useFixture(fixtures.TempDir()).path)
        for name, value, group in (("instances_path", str(state / "instances"), None),
                                   ("endpoint", self.lxd.socket, "lxd"), ("owners_dir", str(state / "owners"), "lxd"),
                                   ("storage_pool", self.lxd.pool, "lxd")):
            CONF.set_override(name, value, group=group)
            self.addCleanup(CONF.clear_override, name, group=group)
        disk = self.useFixture(storage.Loop()).path
        self.volume = Volume("4d1f3b1a-0b0e-4a0e-9d0c-1c9f5c3f6f01", "local", {"device_path": disk}, PATH)
        self.server = records.instance()
        # Nova's database with the tags is missing here.
        for tagged in (objects.VirtualInterfaceList, objects.BlockDeviceMappingList):
            self.useFixture(fixtures.MockPatchObject(tagged, "get_by_instance_uuid", return_value=[]))
        self.server.get_network_info = lambda: ()
        self.lxd.engine.create(ContainerSpec(self.server.name, self.lxd.imported(), Cpu(1), Memory(64 * 2**20),
                                             RootDisk(lxd.POOL), labels=labels.of(self.server)))
        self.lxd.engine.start(self.server.name)

    def volumes(self) -> Volumes:
        """As a nova-compute that just started has them."""
        return backend.build(CONF).volumes

    def attach(self) -> None:
        self.volumes().attach(None, self.server, self.volume)

    def detach(self) -> None:
        self.volumes().detach(self.server, PATH)

    def put_right(self, step: int | None) -> None:
        with contextlib.suppress(exception.DiskNotFound):
            self.detach()
        self.assertEqual((), connections.of(self.server.uuid), f"records after step {step}")
        devices = self.lxd.engine.client.instance(self.server.name)[0]["devices"]
        self.assertEqual({"root"}, set(devices), f"devices after step {step}")
        pid = self.lxd.engine.metrics(self.server.name).pid
        self.assertFalse(Path(f"/proc/{pid}/root{PATH}").exists(), f"node after step {step}")

    def test_attach(self) -> None:
        for step in killed_at_points(self.attach, FEWEST_STEPS):
            self.put_right(step)

    @levels.exhaustive("an attachment remains")
    def test_detach(self) -> None:
        for step in killed_at_points(self.detach, FEWEST_STEPS, self.attach):
            self.put_right(step)

    @levels.exhaustive("the same points as test_detach")
    def test_a_killed_detachment_leaves_the_volume_usable(self) -> None:
        """It is fenced while it is detached: the next start gives it back."""
        fenced = 0
        for step in killed_at_points(self.detach, FEWEST_STEPS, self.attach):
            node = Path(f"/proc/{self.lxd.engine.metrics(self.server.name).pid}/root{PATH}")
            before = stat.S_IMODE(node.stat().st_mode) if node.exists() else None
            fenced += before == 0
            self.volumes().restore_fenced()
            if node.exists():
                self.assertEqual(0o600, stat.S_IMODE(node.stat().st_mode), f"the node after step {step}")
                self.assertNotEqual(0, node.stat().st_uid, f"the node's owner after step {step}")
            self.put_right(step)
        self.assertGreaterEqual(fenced, levels.budget(gate=0, exhaustive=1))  # the gate tries one step
