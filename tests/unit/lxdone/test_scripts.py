# SPDX-License-Identifier: Apache-2.0
from lxdone import lcm_states
from lxdone.cli import main
from lxdone.vmm import Vmm
from tests.unit.onedriver import scriptscontract


class ScriptsTest(scriptscontract.ScriptsContract):
    driver, vmm, unsupported, command = "lxdone", Vmm, lcm_states.UNSUPPORTED, staticmethod(main)
