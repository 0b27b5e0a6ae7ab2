# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import fixtures
import testtools

from bench.emulatednodes import LxdoneNode
from onedriver.monitor import Type
from tests.functional_one.vms import Machine


class LxdoneNodeTest(testtools.TestCase):
    def test_every_vm_monitored(self) -> None:
        """Otherwise the benchmark would measure less than it says."""
        directory = Path(self.useFixture(fixtures.TempDir()).path)
        node = LxdoneNode("lxdone-001", directory, directory / "datastores")
        for number in (7, 8):
            vm = Machine(id=number)
            self.assertEqual(vm.name, node.act(["vmm", "deploy", "deployment.0", "lxdone-001", str(number),
                                                "lxdone-001"], vm.deployment(lcm=2).encode()))
        for kind in (Type.STATE_VM, Type.MONITOR_VM):
            lines = [line for line in node.probe(kind).splitlines() if line.startswith("VM")]
            self.assertEqual(2, len(lines), kind)
