# SPDX-License-Identifier: Apache-2.0
"""Run the command ``lxdone``, which oned's scripts call.

    lxdone vmm ACTION ARGUMENT…     an action, with oned's own arguments and standard input
    lxdone vmm copy_disk VM DISK    copy a disk of a running VM and print the copy's path; the VM's description is on
                                    standard input
    lxdone vmm receive ARGUMENT…    receive a VM of a live migration, on request of lxdone on its source
    lxdone vmm limit_nic one-VM NIC_ID RECEIVED SENT
                                    limit a NIC of a VM, in KB/s: for OpenNebula's network driver
    lxdone tm SCRIPT ARGUMENT…      on the front-end: a script of OpenNebula's transfer drivers, if it is about a disk
                                    of a running VM of this driver
    lxdone probe KIND/NAME          print a monitoring probe's output: host/system, host/monitor, vm/status,
                                    vm/monitor, vm/execution
    lxdone command NAME FD          start and supervise a command of onevm exec in a container
    lxdone reconcile                finish the node's own work: for VMs whose containers stopped without an action,
                                    and for devices of killed actions

Modules that a short call does not need are not imported: they would take most of its time.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from onedriver import program

USAGE = ("usage: lxdone vmm ACTION ARGUMENT… | lxdone probe KIND/NAME | lxdone reconcile | lxdone tm SCRIPT ARGUMENT… "
         "(see the manual: OpenNebula)")


def main(words: Sequence[str]) -> int:
    program.log_to(sys.stderr)
    asked = "--help" in words[:2]
    match [] if asked else list(words):
        case ["tm", script, *argv]:
            from lxdone import livecopy

            return livecopy.act(script, argv)
        case ["probe", "vm/execution", *sent]:  # runs often, and does not need LXD
            from lxdone import conf
            from onedriver.node import commands

            return program.run("vm/execution", lambda: commands.unreported(Path(conf.load().state), sent))
        case ["vmm" | "probe", _, *_] | ["command", _, _] | ["reconcile"]:
            from lxdone import node

            return node.main(words)
        case _:
            print(USAGE, file=sys.stdout if asked else sys.stderr)
            return 0 if asked else 2
