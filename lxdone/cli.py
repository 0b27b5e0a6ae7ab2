# SPDX-License-Identifier: Apache-2.0
"""Run the command ``lxdone``, which the scripts that oned calls run.

    lxdone vmm ACTION ARGUMENT…     an action, with oned's own arguments and standard input
    lxdone vmm copy_disk VM DISK    copy a disk of a VM that runs and print the copy's path; the VM's description is on
                                    standard input
    lxdone vmm limit_nic one-VM NIC_ID RECEIVED SENT
                                    limit a NIC of a VM, in KB/s: for OpenNebula's network driver
    lxdone tm SCRIPT ARGUMENT…      on the front-end: a script of OpenNebula's transfer drivers, if it is about a disk
                                    of a VM of this driver that runs
    lxdone probe KIND/NAME          what a monitoring probe prints: host/system, host/monitor, vm/status, vm/monitor,
                                    vm/execution
    lxdone command NAME FD          begins a command of onevm exec in a container and stays with it
    lxdone reconcile                what the node does by itself: for VMs whose containers stopped by themselves, and
                                    for devices of actions that were killed

What a short call does not need is not imported: most of its time would be that.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from containerhost.errors import ContainerHostError
from lxdone import conf
from onedriver import program
from onedriver.node import commands, vmlock

STARTS = ("deploy", "restore")
USAGE = ("usage: lxdone vmm ACTION ARGUMENT… | lxdone probe KIND/NAME | lxdone reconcile | lxdone tm SCRIPT ARGUMENT… "
         "(see the manual: OpenNebula)")


def main(words: Sequence[str]) -> int:
    program.log_to(sys.stderr)
    asked = "--help" in words[:2]
    match [] if asked else list(words):
        case ["vmm", script, *argv]:
            return of_vm(script, argv)
        case ["tm", script, *argv]:
            return transfer(script, argv)
        case ["probe", name, *arguments]:
            return probe(name, arguments)
        case ["command", name, fd]:
            return command(name, fd)
        case ["reconcile"]:
            return reconcile()
        case _:
            print(USAGE, file=sys.stdout if asked else sys.stderr)
            return 0 if asked else 2


def of_vm(script: str, argv: Sequence[str]) -> int:
    """Run an action of oned's, or of one of the driver's own scripts."""
    if script == "limit_nic":
        return limit_nic(argv)
    return copy_disk(*argv) if script == "copy_disk" and len(argv) == 2 else act(script, argv)


def act(script: str, argv: Sequence[str]) -> int:
    from lxdone import lcm_states
    from onedriver import actions, document
    from onedriver.node import validation

    def done() -> str | None:
        call = actions.call(script, argv, document.read(sys.stdin.buffer))
        validation.of_action(call.action, lcm_states.UNSUPPORTED)
        options = conf.load()

        from lxdone import backend

        if call.action in STARTS and call.vm.pcis:
            backend.reconciler(options).remove_ended()  # VMs that are over may have the devices

        with vmlock.held(Path(options.state), call.vm_id, options.operation_timeout):
            return getattr(backend.vmm(options), call.action)(call)

    return program.run(script, done, {ContainerHostError: 1})


def copy_disk(vm_id: str, disk_id: str) -> int:
    from lxdone import backend
    from onedriver import actions, document, vm

    def done() -> str:
        found = vm.vm(document.parse(document.read(sys.stdin.buffer), "VM"))
        number = actions.number("copy_disk", vm_id)
        actions.require_described("copy_disk", number, found)
        options = conf.load()
        with vmlock.held(Path(options.state), number, options.operation_timeout):
            return backend.vmm(options).copy_disk(
                actions.Call("copy_disk", {"disk_id": disk_id}, number, found.host or "", found))

    return program.run("copy_disk", done, {ContainerHostError: 1})


def limit_nic(argv: Sequence[str]) -> int:
    from onedriver.node import niclimits

    def done() -> None:
        wanted, options = niclimits.parsed(argv), conf.load()

        from lxdone import backend

        with vmlock.held(Path(options.state), wanted.vm_id, niclimits.TIMEOUT):
            backend.vmm(options).limit_nic(*wanted)

    return program.run(niclimits.ACTION, done, {ContainerHostError: 1})


def transfer(script: str, argv: Sequence[str]) -> int:
    from lxdone import livecopy

    return livecopy.act(script, argv)


def probe(name: str, arguments: Sequence[str]) -> int:
    if name == "vm/execution":  # often, and without LXD
        return program.run(name, lambda: commands.unreported(Path(conf.load().state), arguments))

    from lxdone import backend
    from onedriver.node import measure

    return program.run(name, lambda: measure.probe(name, lambda: backend.measure(conf.load())), {ContainerHostError: 1})


def command(name: str, fd: str) -> int:
    from lxdone import backend
    from onedriver.node import exec_agent

    return exec_agent.run(name, fd, conf.load,
                          lambda options, name, words: backend.engine(options).command(name, words))


def reconcile() -> int:
    from lxdone import backend

    return program.run("reconcile", lambda: backend.reconciler(conf.load()).reconcile(), {ContainerHostError: 1})
