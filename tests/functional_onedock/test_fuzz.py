# SPDX-License-Identifier: Apache-2.0
"""Any order of actions, allowed or not, ends with nothing left behind: a bounded walk, the same one every time."""

import random

from tests import levels
from tests.functional_one.vms import ROOT, Machine
from tests.functional_onedock.base import BOOT, CLEANUP, POWEROFF, RESTORE, SUSPEND, UNDEPLOY, OnedockCase
from tests.functional_onedock.test_parts import MARK, PLACE, disk

STEPS = levels.budget(gate=26, exhaustive=200)
SEED = 7


class FuzzTest(OnedockCase):
    def test_any_order_of_actions_leaves_nothing(self) -> None:
        base = Machine(devices=(self.vfs[0],), nics=(0,))
        hot = base.changed(devices=(self.vfs[0], self.gpus[0]), attach="pci")
        nic = base.changed(nics=(0, 1), attach="nic")
        volume = base.changed(disks=ROOT + disk(3, MARK))
        self.node.give_disk(base)
        self.node.give_file_system(base, 3)
        nics = (base.mac(9), "one-br0", "-", "dummy", "one-1-9")
        acts = [("deploy", base, (), BOOT), ("cancel", base, (), POWEROFF), ("shutdown", base, (), POWEROFF),
                ("cancel", base, (), UNDEPLOY), ("save", base, (), SUSPEND), ("restore", base, (), RESTORE),
                ("reset", base, (), 3), ("reboot", base, (), 3), ("attach_nic", hot, nics, 3),
                ("detach_nic", hot, nics[:1], 3), ("attach_nic", nic, nics, 3), ("detach_nic", nic, nics[:1], 3),
                ("attach_disk", volume, (*PLACE, "message"), 3), ("detach_disk", volume, PLACE, 3),
                ("resize", base.changed(memory=192), (), 3), ("snapshot_create", base, ("0",), 3),
                ("snapshot_revert", base, ("snap-0",), 3), ("snapshot_delete", base, ("snap-0",), 3)]
        walk = random.Random(SEED)
        self.addCleanup(self.ok, "cancel", base, lcm=CLEANUP)
        self.ok("deploy", base, lcm=BOOT)
        done = 1
        for _ in range(STEPS):
            action, machine, arguments, lcm = walk.choice(acts)
            result = self.node.act(action, machine, *arguments, lcm=lcm)
            self.assertNotIn("a mistake in the driver", result.reason, result.err)
            self.assertEqual(result.status == 0, result.reason == "", result.err)
            done += result.status == 0
        self.assertGreater(done, STEPS // 3)
