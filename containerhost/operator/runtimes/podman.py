# SPDX-License-Identifier: Apache-2.0
"""Translate grants to arguments of ``podman run`` (podman-run(1)). Pure.

Interfaces stay on the host, as HPC containers use them: a container with a network function shares the host's network
unless the command chooses another.
"""

import itertools
from collections.abc import Mapping, Sequence

from containerhost.devices.grants import Grant
from containerhost.engines.affinity import Binding
from containerhost.errors import SpecError
from containerhost.operator.runtimes import process

# For a rank (podman.io, "Podman in HPC environments"): variables and sockets of mpirun, and memory that ranks share.
RANK_OPTIONS = ("--env-host", "--volume=/tmp:/tmp", "--ipc=host", "--pid=host", "--network=host")
_DETACHED = {"-d", "--detach"}
_NETWORK = ("--network", "--net")


def translate(command: Sequence[str], grants: Sequence[Grant], group: str, binding: Binding
              ) -> tuple[list[str], Mapping[str, str]]:
    """Return the command with devices, variables and control group after its subcommand ``run``.

    :param group: Podman creates the container's group below it, independent of systemd
    :raises SpecError: the command is not ``podman run``, or continues without Podman
    """
    at = process.position(command)
    # Options with separate values, and the container's own command, cannot be recognized here.
    first = itertools.takewhile(lambda word: word.startswith("-"), command[at + 1:])
    if not _DETACHED.isdisjoint(first):
        raise SpecError("podman run --detach would outlive the command with the devices: remove the option")
    variables = process.environment(grants)
    options = [f"--cgroup-parent={group}"]
    options += [f"--device={path}" for path in process.nodes(grants)]
    options += [f"--env={name}={value}" for name, value in variables.items()]
    options += [f"--cpuset-{name}={','.join(map(str, sorted(ids)))}"
                for name, ids in (("cpus", binding.cores), ("mems", binding.nodes)) if ids]
    if any(grant.netdev for grant in grants) and not any(
            word.partition("=")[0] in _NETWORK for word in command[at:]):
        options.append("--network=host")
    return [command[0], "--cgroup-manager=cgroupfs", *command[1:at + 1], *options, *command[at + 1:]], {}
