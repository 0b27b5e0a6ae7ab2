# SPDX-License-Identifier: Apache-2.0
"""Sequences of what oned does with VMs on a node of lxdone's."""

from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from onedriver.node.names import name
from tests.model import frame
from tests.model.opennebula.lxd import LxdNode
from tests.model.opennebula.machine import OpenNebula, faults
from tests.model.opennebula.transitions import hotplug


class Lxdone(OpenNebula):
    node_class = LxdNode

    @precondition(lambda self: self.having("running"))
    @rule(data=st.data(), plan=faults)
    def save_as(self, data: Any, plan: Any) -> None:
        """Copy the root of a VM that runs, as the transfer driver does for `onevm disk-saveas`."""
        server = self.drawn(data, self.having("running"))
        made = self.act(server, hotplug("copy_disk"), plan=plan, disk_id="0")
        if made:
            assert int(Path(made).read_bytes()[:257]) == self.node.engine.content[name(server.vm.id)]
            Path(made).unlink()


class LxdoneTest(frame.ModelTest):
    machine = Lxdone
    rounds = 6
    steps = 20
