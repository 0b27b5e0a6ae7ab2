# SPDX-License-Identifier: Apache-2.0
import re
from pathlib import Path
from unittest import mock

import fixtures
import testtools

from containerhost.engines.contract import ContainerState, Status
from containerhost.linux.sysfs import Host
from onedriver.node import measure
from onedriver.node.measure import Measure
from onedriver.node.pcifilter import PciFilter
from tests.kernel.onedriver.node.test_vmlock import held


class MeasureTest(testtools.TestCase):
    def test_vm_is_left_out_while_an_action_works_on_it(self) -> None:
        """Its container's state would be taken for a power-off, or for the end of a deploy that may still fail."""
        state = Path(self.useFixture(fixtures.TempDir()).path)
        engine = mock.Mock()
        told = Measure("x", engine, engine.containers, state, state, PciFilter(), Host(), state)

        def states(status: Status) -> tuple[bool, list[str]]:
            engine.containers.return_value = tuple(
                ContainerState(f"one-{number}", status, {"one.vm": str(number)}) for number in (1, 2))
            (state / measure.WHOLE).unlink(missing_ok=True)
            text = told.vm_status()
            return "SYNC_STATE" in text, re.findall(r' STATE="(\w+)"', text)

        self.assertEqual((True, ["POWEROFF", "POWEROFF"]), states(Status.STOPPED))
        with held(state, 1):
            self.assertEqual((False, ["POWEROFF"]), states(Status.STOPPED))
            self.assertEqual((False, ["RUNNING"]), states(Status.RUNNING))
        self.assertEqual((True, ["RUNNING", "RUNNING"]), states(Status.RUNNING))
