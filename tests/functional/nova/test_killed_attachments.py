# SPDX-License-Identifier: Apache-2.0
"""Kill nova-compute while it attaches a volume: nova keeps its record, and a detachment removes all there is."""

from tests.functional.nova import test_volumes  # isort: skip (decides how nova runs)

import fixtures
from nova import context as nova_context
from nova import objects
from nova.volume import cinder

from tests import levels
from tests.functional.nova import base, killing
from tests.waiting import await_that

TIMEOUT = 60.0  # s


class KilledAttachmentsTest(test_volumes.VolumeServers):
    def setUp(self) -> None:
        super().setUp()
        # Cinder is a fixture here, which has taken the place of nova's client.
        outside = tuple(entry for entry in killing.OUTSIDE if entry[0] is not cinder.API)
        self.useFixture(fixtures.MonkeyPatch("tests.functional.nova.killing.OUTSIDE", outside))
        self.killer = killing.Killer()
        installed = self.killer.installed()
        installed.__enter__()
        self.addCleanup(installed.__exit__, None, None, None)

    @levels.exhaustive("KilledVolumesTest kills the driver's part of it")
    def test_what_a_killed_attachment_left_a_detachment_removes(self) -> None:
        volume, _ = self.cinder.volume()
        server = self.server()
        self.killer.arm(None, base.HOST)
        self.attach(server, volume)
        effects = self.killer.effects
        self.detach(server, volume)
        for step in levels.points(effects):
            self.killer.arm(step, base.HOST)
            self.api.post_server_volume(server["id"], {"volumeAttachment": {"volumeId": volume}})
            await_that(self.killer.happened.is_set, "nova-compute is killed", TIMEOUT)
            self.killer.arm(None, base.HOST)
            self.restart_compute_service(self.computes[base.HOST])
            self.api.delete_server_volume(server["id"], volume)
            await_that(lambda: not self.known(server["id"]), f"detached after step {step}", TIMEOUT)
            self.assertEqual([], self.nodes(server), f"step {step}")
            self.assert_free(volume)
        self.gone(server)

    @staticmethod
    def known(server: str) -> list[str]:
        """Ids of the volumes that nova counts among the server's."""
        found = objects.BlockDeviceMappingList.get_by_instance_uuid(nova_context.get_admin_context(), server)
        return [mapping.volume_id for mapping in found if mapping.is_volume]
