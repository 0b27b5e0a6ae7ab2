# SPDX-License-Identifier: Apache-2.0
import contextlib
from typing import Any
from unittest import mock

import testtools

from containerhost import errors
from containerhost.devices.scan import HostView
from containerhost.spec import BlockDevice, Nic, Part
from nova_lxd_ext.server.outfit import Outfit, Supplier
from nova_lxd_ext.server.wanted import NOTHING, Wanted
from tests.unit.containerhost.engines.test_lxd_config import gpu_grant
from tests.unit.nova import records


class Recording(Supplier):
    """Writes down what it is asked; fails where told."""

    def __init__(self, name: str, log: list[str], part: Part | None = None, fails: str = "") -> None:
        self.name, self.log, self.part, self.fails = name, log, part, fails

    def _note(self, what: str) -> None:
        self.log.append(f"{self.name} {what}")
        if what == self.fails:
            raise errors.HostActionFailed(f"{self.name} cannot")

    def require_possible(self, instance: Any, wanted: Wanted, view: Any) -> None:
        self._note("possible")

    @contextlib.contextmanager
    def expecting(self, instance: Any, wanted: Wanted) -> Any:
        self._note("expects")
        yield
        self._note("has waited")

    def put_on(self, context: Any, instance: Any, wanted: Wanted, view: Any) -> tuple[Part, ...]:
        self._note("on")
        return (self.part,) if self.part else ()

    def take_off(self, context: Any, instance: Any, wanted: Wanted, view: Any) -> None:
        self._note("off")

    def reconcile(self, alive: Any) -> None:
        self._note("reconciles")


class OutfitTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.log: list[str] = []
        self.engine = mock.Mock()
        self.server = records.instance()

    def outfit(self, first_fails: str = "", last_fails: str = "") -> Outfit:
        return Outfit(self.engine, (Recording("a", self.log, Nic("eth0", "v"), first_fails),
                                    Recording("b", self.log, BlockDevice("x", "/dev/loop0", "/dev/vdb"), last_fails)),
                      HostView)

    def test_parts_come_in_the_suppliers_order_and_confirmations_are_awaited_after_all(self) -> None:
        parts = self.outfit().refit(None, self.server, NOTHING, HostView())
        self.assertEqual(["a expects", "b expects", "a on", "b on", "b has waited", "a has waited"], self.log)
        self.assertEqual([Nic, BlockDevice], [type(part) for part in parts])
        self.engine.refit.assert_called_once_with(self.server.name, parts)

    def test_taking_off_goes_backwards_through_all_and_then_tells_the_first_error(self) -> None:
        outfit = self.outfit("off", "off")
        error = self.assertRaises(errors.HostActionFailed, outfit.take_off, None, self.server, NOTHING,
                                  HostView())
        self.assertEqual(("b cannot", ["b off", "a off"]), (str(error), self.log))

    def test_a_supplier_that_cannot_reconcile_keeps_no_other_from_it(self) -> None:
        self.outfit("reconciles").reconcile(())
        self.assertEqual(["a reconciles", "b reconciles"], self.log)

    def test_what_is_impossible_is_refused_before_anything_is_put_on(self) -> None:
        self.assertRaises(errors.HostActionFailed, self.outfit(last_fails="possible").require_possible, self.server,
                          NOTHING, HostView())
        self.assertEqual(["a possible", "b possible"], self.log)

    def test_a_container_that_is_not_as_granted_does_not_go_on(self) -> None:
        self.engine.verify.side_effect = errors.NotAsGranted("it sees /dev/nvidia1")
        self.assertRaises(errors.NotAsGranted, self.outfit().start, self.server, (gpu_grant(),))
        self.engine.stop.assert_called_once_with(self.server.name, timeout=mock.ANY, force=True)

    def test_a_container_without_grants_is_not_looked_into(self) -> None:
        self.outfit().start(self.server, (Nic("eth0", "v"),))
        self.engine.start.assert_called_once_with(self.server.name)
        self.engine.verify.assert_not_called()
