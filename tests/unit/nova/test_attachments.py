# SPDX-License-Identifier: Apache-2.0
import contextlib
from pathlib import Path
from typing import Any
from unittest import mock

import testtools

from containerhost import errors
from containerhost.engines.spec import BlockDevice, Nic, Part
from containerhost.inventory.scan import HostView
from nova_lxd_ext.instance.attachmentprovider import AttachmentProvider
from nova_lxd_ext.instance.requested import NOTHING, RequestedResources
from nova_lxd_ext.server.attachments import DeviceAttachments
from tests.unit.containerhost.engines.test_lxd_config import gpu_grant
from tests.unit.nova import records


class Recording(AttachmentProvider):
    """Writes down what it is asked; fails where told."""

    def __init__(self, name: str, log: list[str], part: Part | None = None, fails: str = "") -> None:
        self.name, self.log, self.part, self.fails = name, log, part, fails

    def _note(self, what: str) -> None:
        self.log.append(f"{self.name} {what}")
        if what == self.fails:
            raise errors.HostActionFailed(f"{self.name} cannot")

    def require_possible(self, instance: Any, requested: RequestedResources, view: Any) -> None:
        self._note("possible")

    @contextlib.contextmanager
    def expecting(self, instance: Any, requested: RequestedResources) -> Any:
        self._note("expects")
        yield
        self._note("has waited")

    def attach_all(self, instance: Any, requested: RequestedResources, view: Any) -> tuple[Part, ...]:
        self._note("on")
        return (self.part,) if self.part else ()

    def release_all(self, instance: Any, requested: RequestedResources, view: Any) -> None:
        self._note("off")

    def reconcile(self, alive: Any) -> None:
        self._note("reconciles")


class AttachmentsTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.log: list[str] = []
        self.engine = mock.Mock()
        self.server = records.instance()

    def attachments(self, first_fails: str = "", last_fails: str = "") -> DeviceAttachments:
        return DeviceAttachments(self.engine, (Recording("a", self.log, Nic("eth0", "v"), first_fails),
                                               Recording("b", self.log, BlockDevice("x", "/dev/loop0", "/dev/vdb"),
                                                         last_fails)),
                                 HostView, Path("/nowhere"))

    def test_parts_come_in_the_suppliers_order_and_confirmations_are_awaited_after_all(self) -> None:
        attachments = self.attachments()
        with attachments.expecting(self.server, NOTHING):
            attachments.attach_all(self.server, NOTHING, HostView())
        self.assertEqual(["a expects", "b expects", "a on", "b on", "b has waited", "a has waited"], self.log)

    def test_a_start_awaits_no_confirmation(self) -> None:
        """None comes of a port that is wired or switched off, nor before nova-compute has started."""
        parts = self.attachments().update_devices(self.server, NOTHING, HostView())
        self.assertEqual(["a on", "b on"], self.log)
        self.assertEqual([Nic, BlockDevice], [type(part) for part in parts])
        self.engine.update_devices.assert_called_once_with(self.server.name, parts)

    def test_taking_off_goes_backwards_through_all_and_then_tells_the_first_error(self) -> None:
        attachments = self.attachments("off", "off")
        error = self.assertRaises(errors.HostActionFailed, attachments.release_all, self.server, NOTHING,
                                  HostView())
        self.assertEqual(("b cannot", ["b off", "a off"]), (str(error), self.log))

    def test_a_supplier_that_cannot_reconcile_keeps_no_other_from_it(self) -> None:
        self.attachments("reconciles").reconcile(())
        self.assertEqual(["a reconciles", "b reconciles"], self.log)

    def test_what_is_impossible_is_refused_before_anything_is_put_on(self) -> None:
        self.assertRaises(errors.HostActionFailed, self.attachments(last_fails="possible").require_possible,
                          self.server, NOTHING, HostView())
        self.assertEqual(["a possible", "b possible"], self.log)

    def test_a_container_that_is_not_as_granted_does_not_go_on(self) -> None:
        self.engine.verify.side_effect = errors.NotAsGranted("it sees /dev/nvidia1")
        self.assertRaises(errors.NotAsGranted, self.attachments().start, self.server, (gpu_grant(),))
        self.engine.stop.assert_called_once_with(self.server.name, timeout=mock.ANY, force=True)

    def test_a_container_without_grants_is_not_looked_into(self) -> None:
        self.attachments().start(self.server, (Nic("eth0", "v"),))
        self.engine.start.assert_called_once_with(self.server.name)
        self.engine.verify.assert_not_called()
