# SPDX-License-Identifier: Apache-2.0
"""Run the command ``lxdone`` on a node."""

import sys
from collections.abc import Sequence

from lxdone import backend, conf, lcm_states
from onedriver.node.node_command import NodeCommand, run

COMMAND = NodeCommand(conf.load, backend, lambda options: backend.reconciler(options).remove_ended(),
                      lcm_states.UNSUPPORTED, "LXD_")


def main(words: Sequence[str]) -> int:
    match words:
        case ["vmm", "copy_disk", vm_id, disk_id]:
            return copy_disk(vm_id, disk_id)
        case ["reconcile"]:
            return run("reconcile", lambda: backend.reconciler(conf.load()).reconcile())
    return COMMAND.run(words)


def copy_disk(vm_id: str, disk_id: str) -> int:
    from onedriver import actions, document, vm

    def act() -> str:
        found = vm.vm(document.parse(document.read(sys.stdin.buffer), "VM"))
        number = actions.number("copy_disk", vm_id)
        actions.require_described("copy_disk", number, found)
        with COMMAND.alone(number) as options:
            return backend.vmm(options).copy_disk(
                actions.Call("copy_disk", {"disk_id": disk_id}, number, found.host or "", found))

    return run("copy_disk", act)
