# SPDX-License-Identifier: Apache-2.0
"""Security groups of VMs on Docker."""

import subprocess

from tests import levels
from tests.functional import securitygroups
from tests.functional_one.vms import Machine
from tests.functional_onedock.base import OnedockCase


@levels.exhaustive("the drivers share this code, and the gate has it on LXD",
                   tests=("test_rules_hold_what_the_container_sends_and_gets",))
class SecurityGroupsTest(securitygroups.SecurityGroupContract, OnedockCase):
    def network(self, machine: Machine, *words: str) -> str:
        """From the host: in the container nobody may set addresses."""
        done = subprocess.run(["nsenter", "--target", str(self.pid(machine)), "--net", "ip", *words],
                              capture_output=True, text=True, check=True)
        return done.stdout
