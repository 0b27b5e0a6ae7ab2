# SPDX-License-Identifier: Apache-2.0
"""Run the command ``onedock``, which oned's scripts call.

    onedock datastore ACTION ID      an action of the datastore driver, on the front-end
    onedock tm ACTION ARGUMENT…      an action of the transfer driver, on the front-end
    onedock node                     a step of it, on a node: the front-end's request is on standard input
    onedock image …                  the part of it that concerns images of the node's engine, as root
    onedock usage DIRECTORY          print the size of the disks in a system datastore
    onedock vmm ACTION ARGUMENT…     an action of a VM, on its node, with oned's own arguments and standard input
    onedock vmm receive ARGUMENT…    receive a VM of a live migration, on request of onedock on its source
    onedock vmm limit_nic one-VM NIC_ID RECEIVED SENT
                                     limit a NIC of a VM, in KB/s: for OpenNebula's network driver
    onedock probe KIND/NAME          print a monitoring probe's output: host/system, host/monitor, vm/status,
                                     vm/monitor, vm/execution
    onedock command NAME FD          start and supervise a command of onevm exec in a container
    onedock reconcile                finish or undo what killed actions left: live migrations, changes of devices
    onedock leave VM DATASTORE       let a stopped VM leave this node, with its data beside its disk: for the transfer
                                     driver, with the system datastore's id
    onedock drop VM                  remove a VM's resources on this node, except its disks: likewise
    onedock lock VM DATASTORE DISK [frozen]
                                     block other actions of a VM until standard input ends, and print whether its
                                     container uses the disk: for the transfer driver, while it changes the disk's
                                     file; with "frozen" also block writes of the container, while it copies the disk
"""

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from containerhost.errors import ContainerHostError
from onedriver import program

USAGE = ("usage: onedock datastore|tm|node|image|usage|vmm|probe|reconcile|leave|drop|lock … (see the manual: "
         "OpenNebula on Docker)")


def main(words: Sequence[str]) -> int:
    program.log_to(sys.stderr)
    asked = "--help" in words[:2]
    match [] if asked else list(words):
        case ["datastore" | "tm" as kind, script, *rest]:
            act = datastore if kind == "datastore" else transfer
            return run(script, lambda: act(script, rest))
        case ["node"]:
            return run("a step of the transfer driver", serve)
        case ["usage", directory]:
            return run("usage", lambda: usage(directory))
        case ["probe", "vm/execution", *sent]:  # often, and without Docker
            from onedock import conf
            from onedriver.node import commands

            return run("vm/execution", lambda: commands.unreported(Path(conf.load().state), sent))
        case (["reconcile"] | ["vmm" | "probe" | "image", _, *_] | ["drop", _] | ["leave" | "command", _, _]
              | ["lock", _, _, _] | ["lock", _, _, _, "frozen"]):
            from onedock import node

            return node.main(words)
        case _:
            print(USAGE, file=sys.stdout if asked else sys.stderr)
            return 0 if asked else 2


def run(what: str, act: Callable[[], str | None]) -> int:
    return program.run(what, act, {OSError: 1, ContainerHostError: 1})


# Modules are loaded by what needs them: a front-end has no engine, and a node no datastore.


def datastore(script: str, argv: Sequence[str]) -> str | None:
    from onedock.datastore import actions, limits
    from onedriver import document

    with limits.confined():
        return actions.act(script, argv, document.read(sys.stdin.buffer))


def transfer(script: str, argv: Sequence[str]) -> str | None:
    from onedock.transfer import actions

    return actions.act(script, argv)


def serve() -> None:
    from onedock.transfer import node_agent

    os.umask(0o027)
    # Without a buffer: what follows the request is for whoever the step hands it to.
    with open(0, "rb", buffering=0, closefd=False) as source:
        node_agent.serve(source, sys.stdout.buffer)


def usage(directory: str) -> str:
    from onedock.transfer import usage

    return usage.of_datastore(Path(directory))
