"""The command ``onedock``: what the scripts that oned calls run.

    onedock datastore ACTION ID      an action of the datastore driver, on the front-end
    onedock vmm ACTION ARGUMENT…     an action of a VM, on its node, with oned's own arguments and standard input
    onedock probe KIND/NAME          what a monitoring probe prints: host/system, host/monitor, vm/status, vm/monitor
    onedock leave VM DATASTORE       let a VM that is off leave this node, with what it wrote beside its disk: for the
                                     transfer driver, with the system datastore's number
    onedock drop VM                  remove what a VM has on this node, apart from its disks: likewise
"""

import sys
from collections.abc import Sequence

from onedriver import program

USAGE = ("usage: onedock datastore ACTION ID | onedock vmm ACTION ARGUMENT… | onedock probe KIND/NAME | onedock leave "
         "VM DATASTORE | onedock drop VM (see the manual: OpenNebula on Docker)")


def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    program.log_to(sys.stderr)
    match words:
        case ["datastore", script, *argv]:
            return program.run(script, lambda: datastore(script, argv), {OSError: 1})
        case ["vmm" | "probe" | "drop", _, *_] | ["leave", _, _]:
            return on_node(words)
        case _:
            print(USAGE, file=sys.stderr)
            return 2


# Modules are loaded by what needs them: a front-end has no engine, and a node no datastore.


def datastore(script: str, argv: Sequence[str]) -> str | None:
    from onedock.datastore import actions

    return actions.act(script, argv, sys.stdin.buffer.read())


def on_node(words: Sequence[str]) -> int:
    from onedock import node

    kind, name, *rest = words
    if kind == "vmm":
        return node.vmm(name, rest, sys.stdin.buffer.read())
    if kind == "probe":
        return node.probe(name)
    return node.drop(name) if kind == "drop" else node.leave(name, rest[0])


if __name__ == "__main__":
    sys.exit(main())
