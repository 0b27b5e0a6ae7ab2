# SPDX-License-Identifier: Apache-2.0
"""Run ``hpcjob`` and the MPI program in its members; compare the ranks' reports with the rank map. Knows no cloud."""

import json
import re
import subprocess
from collections.abc import Sequence
from typing import NamedTuple

import yaml

from tools.cloud.layout import CHECKOUT

EXAMPLE = CHECKOUT / "examples" / "mpi" / "job.yaml"
# As root, whose key the members have.
RUN = "mpirun --allow-run-as-root --hostfile /etc/hpcjob/hostfile ranks"
LINE = re.compile(r"(\d+) (\S+) ([\d,]+) exchanged")
# What ``hpcjob`` says first, on its standard error.
IDENT = re.compile(r"job (\S+)")


class Member(NamedTuple):
    """Describe a member as ``hpcjob start --json`` prints it."""

    rank: int
    group: int
    name: str
    address: str
    host: str


class Rank(NamedTuple):
    """Describe a rank as the MPI program reports it.

    :ivar cores: that it may run on
    """

    number: int
    container: str
    cores: tuple[int, ...]


def job_file(**changes: object) -> str:
    """Return the example's job file with some keys changed."""
    return yaml.safe_dump(yaml.safe_load(EXAMPLE.read_text()) | changes)


def started(output: str) -> tuple[str, list[Member]]:
    """Return the job's id and its members from what ``hpcjob start --json`` printed."""
    told = json.loads(output)
    return told["id"], [Member(**member) for member in told["members"]]


def identified(errors: str) -> str:
    """Return the id of a job from what ``hpcjob start`` said on its standard error; empty if it said none."""
    found = IDENT.match(errors)
    return found[1] if found else ""


def ranks(output: str) -> list[Rank]:
    """Return what the ranks reported, by number. A rank that did not get the data of the one before it is missing."""
    found = [told for line in output.splitlines() if (told := LINE.fullmatch(line))]
    return sorted(Rank(int(told[1]), told[2], tuple(map(int, told[3].split(",")))) for told in found)


def by_rank_map(members: Sequence[Member], found: Sequence[Rank], output: str) -> bool:
    """Return whether every rank ran in the container that the rank map has for it, and all of them communicated."""
    expected = [(member.rank, member.name) for member in members]
    total = f"{len(members)} ranks, sum {sum(member.rank for member in members)}"
    return [(rank.number, rank.container) for rank in found] == expected and total in output.splitlines()


def spread(members: Sequence[Member]) -> bool:
    """Return whether the members of a group share a host, and different groups have different ones."""
    hosts = {(member.group, member.host) for member in members}
    groups = {member.group for member in members}
    return len(hosts) == len(groups) == len({host for _, host in hosts})


def lines(members: Sequence[Member], found: Sequence[Rank]) -> list[str]:
    """Return a line for each rank: its host, its container, its cores."""
    of = {rank.number: rank for rank in found}
    return [f"rank {member.rank}: host {member.host}, container {member.name}, cores "
            f"{','.join(map(str, of[member.rank].cores)) if member.rank in of else 'unknown'}" for member in members]


def last_line(done: "subprocess.CompletedProcess[str]") -> str:
    """Return the last line of a command's errors: the reason of one that failed."""
    return (done.stderr.strip().splitlines() or [""])[-1]
