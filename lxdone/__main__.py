"""The command ``lxdone``: what the scripts that oned calls run.

    lxdone vmm ACTION ARGUMENT…     an action, with oned's own arguments and standard input
    lxdone probe KIND/NAME          what a monitoring probe prints: host/system, host/monitor, vm/status, vm/monitor
    lxdone settle                   what the node does by itself for VMs whose containers stopped by themselves
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from containerhost.errors import ContainerHostError
from lxdone import backend, conf, refusals, vmlock
from onedriver import actions, program
from onedriver.node import measure

USAGE = "usage: lxdone vmm ACTION ARGUMENT… | lxdone probe KIND/NAME (see the manual: OpenNebula)"


def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    program.log_to(sys.stderr)
    match words:
        case ["vmm", script, *argv]:
            return program.run(script, lambda: act(script, argv), {ContainerHostError: 1})
        case ["probe", name, *_]:
            return program.run(name, lambda: measure.probe(name, lambda: backend.measure(conf.load())),
                               {ContainerHostError: 1})
        case ["settle"]:
            return program.run("settle", lambda: backend.settler(conf.load()).settle(), {ContainerHostError: 1})
        case _:
            print(USAGE, file=sys.stderr)
            return 2


def act(script: str, argv: Sequence[str]) -> str | None:
    call = actions.call(script, argv, sys.stdin.buffer.read())
    refusals.of_action(call.action)
    options = conf.load()
    with vmlock.held(Path(options.state), call.vm_id, options.operation_timeout):
        return getattr(backend.vmm(options), call.action)(call)


if __name__ == "__main__":
    sys.exit(main())
