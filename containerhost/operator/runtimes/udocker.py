# SPDX-License-Identifier: Apache-2.0
"""Translate grants to arguments of ``udocker run`` (udocker's user manual, "run"). Pure.

Its modes P and F bind the host's /dev unless told otherwise (``--nosysdirs``), so each node is bound by itself.
"""

from collections.abc import Mapping, Sequence

from containerhost.devices.grants import Grant
from containerhost.engines.affinity import Binding
from containerhost.errors import SpecError
from containerhost.operator.runtimes import process


def translate(command: Sequence[str], grants: Sequence[Grant], group: str, binding: Binding
              ) -> tuple[list[str], Mapping[str, str]]:
    """Return the command with nodes and variables behind its word ``run``.

    :raises SpecError: the command is not ``udocker run``
    """
    at = next((index for index, word in enumerate(command) if word == "run"), 0)
    if not at:
        raise SpecError(f"{' '.join(command[:3])}: only `udocker run` can be given devices")
    options = [f"--volume={path}:{path}" for path in process.nodes(grants)]
    options += [f"--env={name}={value}" for name, value in process.environment(grants).items()]
    return [*command[:at + 1], *options, *command[at + 1:]], {}
