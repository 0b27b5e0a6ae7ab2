# SPDX-License-Identifier: Apache-2.0
"""Translate grants to arguments of ``udocker run`` (udocker's user manual, "run"). Pure.

Its modes P and F bind the host's /dev unless told otherwise (``--nosysdirs``), so each node is bound separately.
"""

from collections.abc import Mapping, Sequence

from containerhost.devices.grants import Grant
from containerhost.engines.affinity import Binding
from containerhost.operator.runtimes import process

# For a rank (user manual, "Running MPI jobs"): mpirun's variables, sockets and files.
RANK_OPTIONS = ("--hostenv", "--volume=/tmp:/tmp")


def translate(command: Sequence[str], grants: Sequence[Grant], group: str, binding: Binding
              ) -> tuple[list[str], Mapping[str, str]]:
    """Return the command with nodes and variables after its subcommand ``run``.

    :raises SpecError: the command is not ``udocker run``
    """
    at = process.position(command)
    options = [f"--volume={path}:{path}" for path in process.nodes(grants)]
    options += [f"--env={name}={value}" for name, value in process.environment(grants).items()]
    return [*command[:at + 1], *options, *command[at + 1:]], {}
