"""The command ``lxdone``: what the scripts that oned calls run.

    lxdone vmm ACTION ARGUMENT…     an action, with oned's own arguments and standard input
    lxdone probe KIND/NAME          what a monitoring probe prints: host/system, host/monitor, vm/status, vm/monitor,
                                    vm/execution
    lxdone command NAME HANDLE      begins a command of onevm exec in a container and stays with it
    lxdone settle                   what the node does by itself for VMs whose containers stopped by themselves

What a short call does not need is not imported: most of its time would be that.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from lxdone import conf
from onedriver import program
from onedriver.node import commands

STARTS = ("deploy", "restore")
#: What actions and probes need, for the process that stands by.
LOADED = ("lxdone.backend", "lxdone.refusals", "onedriver.actions", "onedriver.node.changes", "onedriver.node.measure",
          "onedriver.node.vmlock")
USAGE = "usage: lxdone vmm ACTION ARGUMENT… | lxdone probe KIND/NAME (see the manual: OpenNebula)"


def main(words: Sequence[str]) -> int:
    program.log_to(sys.stderr)
    match list(words):
        case ["vmm", script, *argv]:
            return act(script, argv)
        case ["probe", "vm/execution", *_]:  # often, and without LXD
            return program.run("vm/execution", lambda: commands.told(Path(conf.load().state)))
        case ["probe", name, *_]:
            return probe(name)
        case ["command", name, handle]:
            return command(name, handle)
        case ["settle"]:
            return settle()
        case _:
            asked = list(words) == ["--help"]
            print(USAGE, file=sys.stdout if asked else sys.stderr)
            return 0 if asked else 2


def act(script: str, argv: Sequence[str]) -> int:
    from containerhost.errors import ContainerHostError
    from lxdone import refusals
    from onedriver import actions, document
    from onedriver.node import changes, vmlock

    def done() -> str | None:
        call = actions.call(script, argv, document.read(sys.stdin.buffer))
        changes.of_action(call.action, refusals.UNSUPPORTED)
        options = conf.load()

        from lxdone import backend

        if call.action in STARTS and call.vm.pcis:
            backend.settler(options).clean()  # VMs that are over may have the devices

        with vmlock.held(Path(options.state), call.vm_id, options.operation_timeout):
            return getattr(backend.vmm(options), call.action)(call)

    return program.run(script, done, {ContainerHostError: 1})


def probe(name: str) -> int:
    from containerhost.errors import ContainerHostError
    from lxdone import backend
    from onedriver.node import measure

    return program.run(name, lambda: measure.probe(name, lambda: backend.measure(conf.load())), {ContainerHostError: 1})


def command(name: str, handle: str) -> int:
    from lxdone import backend
    from onedriver.node import commandrun

    return commandrun.run(name, handle, conf.load,
                          lambda options, name, words: backend.engine(options).command(name, words))


def settle() -> int:
    from containerhost.errors import ContainerHostError
    from lxdone import backend

    return program.run("settle", lambda: backend.settler(conf.load()).settle(), {ContainerHostError: 1})
