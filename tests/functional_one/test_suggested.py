# SPDX-License-Identifier: Apache-2.0
"""Test the output of `containerhost config opennebula` as it is: the node's options, VMs of the templates."""

import json
from collections import Counter

from click.testing import CliRunner

from containerhost.allocation.store import AllocationStore
from containerhost.inventory.scan import scan
from containerhost.operator.cli import main
from tests import levels
from tests.functional_one.test_actions import ActionsCase
from tests.functional_onedock import samples


class SuggestedTest(ActionsCase):
    def setUp(self) -> None:
        super().setUp()
        done = CliRunner().invoke(main, ["config", "opennebula", "--json"])
        self.assertEqual(0, done.exit_code, done.output)
        self.told = json.loads(done.stdout)

    def test_vm_of_every_template_has_its_devices(self) -> None:
        self.assertEqual({"gpu-nvidia-a100-sxm4-40gb.x1", "gpu-nvidia-a100-sxm4-40gb.x1.infiniband-vf.x1",
                          "infiniband-vf.x1"}, set(self.told["vms"]))
        for name, text in levels.some("suggested templates", sorted(self.told["vms"].items()), (1,)):
            template = samples.parse(text)
            wanted = Counter(pci["DEVICE"] for pci in template.all("PCI"))
            machine = self.deployed(samples.machine(template, [*self.gpus, *self.vfs]))
            held = AllocationStore(self.node.owners).records()
            self.assertEqual(wanted, Counter(scan().get(device).product_id for device in held), name)
            self.ok("cancel", machine, lcm=23)

    def test_probe_with_the_filter_reports_what_is_offered(self) -> None:
        found = len(self.gpus) + len(self.vfs)
        for filters, expected in ((self.told["pci_filter"], found), (self.told["pci_filter"][:1], len(self.gpus))):
            self.node.configure(f"pci_filter = {json.dumps(filters)}\n")
            probe = self.node.probe("host/system")
            self.assertEqual((0, "", expected), (probe.status, probe.reason, probe.out.count("PCI=[")))
