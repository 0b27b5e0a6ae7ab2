# SPDX-License-Identifier: Apache-2.0
"""Translate the commands of MPI ranks to one of the host's ``mpirun``, which starts each separately. Pure.

The format is that of Open MPI and of MPICH's Hydra: contexts separated by colons, ranks in order. Cores are bound
here, because ``mpirun`` knows neither the cores of a container nor those that others have.
"""

from collections.abc import Iterable, Mapping, Sequence

from containerhost.errors import SpecError
from containerhost.operator.runtimes import podman, process, udocker

VARIABLES = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}  # containers run as root
_OPTIONS = {"podman": podman.RANK_OPTIONS, "udocker": udocker.RANK_OPTIONS}


def command_of_rank(command: Sequence[str], runtime: str) -> list[str]:
    """Return a command with the options that a container needs to be a rank.

    :raises SpecError: the command cannot be a rank
    """
    if ":" in command:  # separates the contexts of mpirun
        raise SpecError("a command with the argument : cannot be started by mpirun")
    options = _OPTIONS.get(runtime, ())
    at = process.position(command) + 1 if options else len(command)
    return [*command[:at], *options, *command[at:]]


def hostfile(ranks: int) -> str:
    """Return the hostfile: one slot for each rank, however many cores the host has."""
    return f"localhost slots={ranks}\n"


def translate(ranks: Iterable[tuple[Sequence[str], Mapping[str, str], Iterable[int]]], hostfile: str) -> list[str]:
    """Return the command that starts all ranks.

    :param ranks: the command, the variables and the cores of each, in their order; empty for any cores
    """
    words = ["mpirun", "--hostfile", hostfile, "--bind-to", "none"]
    for index, (command, environment, cores) in enumerate(ranks):
        bound = ",".join(map(str, sorted(cores)))
        words += [*([":"] if index else []), "-np", "1", *(["taskset", "--cpu-list", bound] if bound else []),
                  *(["env", *(f"{name}={value}" for name, value in environment.items())] if environment else []),
                  *command]
    return words
