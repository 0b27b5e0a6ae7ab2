"""The command ``lxdone``: what the scripts that oned calls run.

    lxdone vmm ACTION ARGUMENT…     an action, with oned's own arguments and standard input
"""

import sys
from collections.abc import Sequence

from containerhost.errors import ContainerHostError
from lxdone import backend, conf, refusals
from onedriver import actions, program

USAGE = "usage: lxdone vmm ACTION ARGUMENT… (see the manual: OpenNebula)"


def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    if len(words) < 2 or words[0] != "vmm":
        print(USAGE, file=sys.stderr)
        return 2
    return vmm(words[1], words[2:])


def vmm(script: str, argv: Sequence[str]) -> int:
    program.log_to(sys.stderr)
    return program.run(script, lambda: act(script, argv), {ContainerHostError: 1})


def act(script: str, argv: Sequence[str]) -> str | None:
    call = actions.call(script, argv, sys.stdin.buffer.read())
    refusals.of_action(call.action)
    return getattr(backend.vmm(conf.load()), call.action)(call)


if __name__ == "__main__":
    sys.exit(main())
