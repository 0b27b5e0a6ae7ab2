# SPDX-License-Identifier: Apache-2.0
"""Sequences of what oned does with VMs on a node of lxdone's."""

from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from onedriver.node.names import name
from onedriver.vm import Vm
from tests.model import frame
from tests.model.opennebula.lxd import LxdNode
from tests.model.opennebula.machine import OpenNebula, faults
from tests.model.opennebula.transitions import Transition, hotplug
from tests.model.opennebula.world import ENDS, ROOT, Server


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


    def succeeded(self, server: Server, transition: Transition, before: dict[str, Any], vm: Vm) -> None:
        """Require also that the disk of a VM that is off or suspended has everything: OpenNebula may copy it now."""
        super().succeeded(server, transition, before, vm)
        if server.state in ENDS:
            disk = self.node.content_of_disk(server.vm.id)
            assert disk >= server.kept, f"VM {server.vm.id} is {server.state}, its disk has {disk}, not {server.kept}"

    def revert_disk(self, server: Server, number: int, content: int) -> None:
        """Do as the transfer driver does: no action is called. What the container has and the disk has not is not given
        up by that."""
        if number == ROOT and self.node.content_of_disk(server.vm.id) >= server.kept:
            server.kept = min(server.kept, content)
        self.node.replace_disk(server.vm.id, number, content)


class LxdoneTest(frame.ModelTest):
    machine = Lxdone
    rounds = 6
    steps = 20
