# SPDX-License-Identifier: Apache-2.0
"""Translate grants to arguments of Apptainer and Singularity. Pure.

Sources: Apptainer User Guide, "GPU Support", "Bind Paths and Mounts"; apptainer-exec(1).

Their containers see the host's /dev, unless ``mount dev = minimal`` in their configuration, or ``--contain``, hides it:
so nodes are bound one by one in any case.
"""

from collections.abc import Mapping, Sequence

from containerhost import vendors
from containerhost.devices.grants import Grant
from containerhost.engines.affinity import Binding
from containerhost.operator.runtimes import process

_WORDS = ("exec", "run", "shell", "test")
# Prefixes of the container's variables: Apptainer's, and Singularity's.
_ENVIRONMENT = ("APPTAINERENV", "SINGULARITYENV")


def translate(command: Sequence[str], grants: Sequence[Grant], group: str, binding: Binding
              ) -> tuple[list[str], Mapping[str, str]]:
    """Return the command with devices and their drivers' libraries after its subcommand, and its variables.

    :raises SpecError: the command starts no container
    """
    at = process.position(command, _WORDS)
    variables = process.environment(grants)
    libraries = [vendors.of(grant.device).apptainer_libraries for grant in grants]
    options = list(dict.fromkeys(filter(None, libraries)))
    options += [f"--bind={path}" for path in process.nodes(grants)]
    return [*command[:at + 1], *options, *command[at + 1:]], {
        f"{prefix}_{name}": value for prefix in _ENVIRONMENT for name, value in variables.items()}
