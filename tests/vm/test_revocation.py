# SPDX-License-Identifier: Apache-2.0
"""Test that no open descriptor of a DRM node reaches a GPU once somebody else has it."""

import json

import fixtures
from testtools.matchers import Contains

from containerhost import errors
from containerhost.devices.grants import Grant
from containerhost.devices.model import Kind
from containerhost.engines.contract import Command
from containerhost.inventory.scan import scan
from tests.vm.containers import TIMEOUT, WORKS, InContainers, consumer
from tests.vm.virtio import Virtio

#: A request by the descriptor, then what the engine's fence leaves of the node: nobody may open it, and it has no path.
STILL_OPEN, REVOKED = [["works", "EACCES", "ENOENT"], ["ENODEV", "EACCES", "ENOENT"]]


class RevocationOfGpus(InContainers):
    def setUp(self) -> None:
        super().setUp()
        self.gpu = next(device for device in scan().devices if device.kind is Kind.GPU)
        self.started("c1")
        self.pid = self.engine.pid("c1")
        self.grant = self.acquired(self.gpu, "c1")
        self.engine.attach("c1", self.grant)
        self.engine.verify("c1", [self.grant])
        self.holder = self.holding("c1", self.grant.own_nodes)

    def taken(self) -> tuple[str, ...]:
        """Take the GPU from the container that has it open, which runs on, and return the complaints."""
        self.engine.detach("c1", self.grant)
        self.engine.verify("c1", [])
        return self.allocator.release_device(self.gpu.id, consumer("c1"), self.pid)

    def given_to_another(self) -> Grant:
        grant = self.acquired(self.gpu, "c2")
        self.started("c2", grant)
        self.assertEqual([WORKS] * len(grant.own_nodes), self.uses("c2", grant.own_nodes))
        return grant

    def assert_held(self, holder: Command, after: list[str]) -> None:
        """Require how the holder's descriptors ended."""
        count = len(self.grant.own_nodes)
        told = holder.finish(b"\n", TIMEOUT)
        self.assertEqual([[WORKS] * count, [after] * count], json.loads(told.stdout), told.stderr)

    def test_driver_bound_anew_revokes_open_descriptors(self) -> None:
        self.assertEqual((), self.taken())
        self.assertEqual({}, self.store.records())
        self.assertIn("it was reset", self.store.hand_overs(self.gpu.id)[-1]["cleaned"])
        self.given_to_another()
        self.assert_held(self.holder, REVOKED)
        self.assertEqual(self.pid, self.engine.pid("c1"))

    def test_gpu_is_blocked_where_its_driver_revokes_nothing(self) -> None:
        self.useFixture(fixtures.MockPatchObject(Virtio, "reset", return_value=False))
        (complaint,) = self.taken()
        self.assertThat(complaint, Contains("may still be in use by"))
        self.assertRaises(errors.DeviceHeld, self.acquired, self.gpu, "c2")
        self.assert_held(self.holder, STILL_OPEN)
        self.engine.stop("c1", timeout=TIMEOUT, force=True)
        self.assertEqual((), self.allocator.release(consumer("c1")))
        self.given_to_another()
