# SPDX-License-Identifier: Apache-2.0
"""VMs with an affinity on Docker."""

from tests import levels
from tests.functional import affinitycontract, viewcontract
from tests.functional.affinitycontract import affine
from tests.functional_one.vms import Machine
from tests.functional_onedock.base import OnedockCase

REPEATED = "the drivers share this code, and the gate has it on LXD"

COUNT = "nproc; grep -c ^processor /proc/cpuinfo; grep -c '^cpu[0-9]' /proc/stat"


@levels.exhaustive(REPEATED, tests=(
    "test_resize_chooses_anew_and_a_refused_one_changes_nothing", "test_bad_affinities_are_refused",
    "test_vms_have_different_cores_and_one_too_many_is_refused"))
class AffinityTest(affinitycontract.AffinityContract, OnedockCase):
    def test_proc_tells_its_own_cpus_with_lxcfs(self) -> None:
        self.useFixture(viewcontract.Lxcfs())
        self.node.configure(f'lxcfs = "{viewcontract.LXCFS}"\n')
        machine = self.deployed(Machine(more=affine("cpumem")))
        self.assertEqual("1\n" * 3, self.shell(machine, COUNT))
        self.ok("resize", machine.changed(cpu="2", vcpu=2, more=affine("cpu")))
        self.assertEqual("2\n" * 3, self.shell(machine, COUNT))
        self.ok("resize", machine)
        self.assertEqual("1\n" * 3, self.shell(machine, COUNT))
