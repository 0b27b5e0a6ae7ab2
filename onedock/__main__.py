"""The command ``onedock``: what the scripts that oned calls run.

    onedock datastore ACTION ID      an action of the datastore driver, on the front-end
"""

import sys
from collections.abc import Sequence

from onedriver import program

USAGE = "usage: onedock datastore ACTION ID (see the manual: OpenNebula on Docker)"


def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    program.log_to(sys.stderr)
    match words:
        case ["datastore", script, *argv]:
            return program.run(script, lambda: datastore(script, argv), {OSError: 1})
        case _:
            print(USAGE, file=sys.stderr)
            return 2


# Modules are loaded by what needs them: a front-end has no engine, and a node no datastore.


def datastore(script: str, argv: Sequence[str]) -> str | None:
    from onedock.datastore import actions

    return actions.act(script, argv, sys.stdin.buffer.read())


if __name__ == "__main__":
    sys.exit(main())
