# SPDX-License-Identifier: Apache-2.0
"""Say what the ranks of a job do on the cores that they have: work, memory traffic and messages. Pure.

A rank's core has one rate for each. Ranks of one socket share its memory's bandwidth, those of one host the link
between its sockets, those of the cluster the hosts' network interfaces. The simulator divides what is shared.
"""

import dataclasses
import random
from collections.abc import Sequence

from bench.placement.loop import Request
from bench.placement.workloads import RANKS, Benchmark

Place = tuple[str, int]
"""A socket: the host's name and the socket's number."""


@dataclasses.dataclass(frozen=True)
class Machine:
    """The cluster. Rates are GB/s; compute is in seconds of a core.

    :ivar sockets: usable cores of each socket of a host
    :ivar core_memory: what one core moves alone
    :ivar socket_cores: how many cores moving memory saturate a socket
    :ivar core_messages: what a rank sends through shared memory
    :ivar link: between the sockets of a host, both directions together
    :ivar network: of a host's interface, in each direction
    """

    hosts: tuple[str, ...] = ("n1", "n2", "n3", "n4")
    sockets: tuple[int, ...] = (16, 16)
    core_memory: float = 22.4
    socket_cores: float = 5.0
    core_messages: float = 8.9
    link: float = 38.4
    network: float = 0.117

    @property
    def cores(self) -> int:
        """Return the usable cores of a host."""
        return sum(self.sockets)

    @property
    def socket_memory(self) -> float:
        """Return the bandwidth of a socket's memory."""
        return self.core_memory * self.socket_cores


@dataclasses.dataclass(frozen=True)
class Efficiency:
    """The rate at which a rank computes by the cores that it may use, in parts of that in one container with affinity.

    :ivar floating: no affinity, all cores of the host
    :ivar part: one of several containers of the job, with several ranks
    :ivar single: a container of its own, that is, a core of its own
    """

    floating: float = 1.0
    part: float = 1.0
    single: float = 1.0

    def of(self, request: Request) -> float:
        """Return the efficiency of the job's ranks."""
        if not request.affinity:
            return self.floating
        if request.containers[0] == 1:
            return self.single
        return self.part if len(request.containers) > 1 else 1.0


def alone(benchmark: Benchmark, machine: Machine) -> float:
    """Return the time of a job whose ranks fill one socket, in parts of its time without contention."""
    moved = machine.core_memory * machine.socket_cores / RANKS
    return (benchmark.compute + benchmark.memory * max(1.0, machine.core_memory / moved)
            + benchmark.messages * max(1.0, machine.core_messages / moved))


@dataclasses.dataclass(frozen=True)
class Flow:
    """Bytes that one rank moves from the memory of one place to another, at most at a rate in GB/s."""

    source: Place
    target: Place
    gbytes: float
    rate: float


def rates(request: Request, machine: Machine) -> tuple[float, float]:
    """Return the highest rate of a rank's flows with memory, and of its messages.

    A rank that floats has a flow with the memory of each socket.
    """
    return machine.core_memory / (1 if request.affinity else len(machine.sockets)), machine.core_messages


def memory_flows(places: Sequence[Place], gbytes: float, rate: float, homes: Sequence[int] = ()) -> list[Flow]:
    """Return the traffic of a rank on each place with the memory of its socket.

    :param homes: sockets with whose memory it has the same traffic instead
    """
    return [Flow((host, home), (host, socket), gbytes / (len(homes) or 1), rate)
            for host, socket in places for home in homes or [socket]]


def message_flows(places: Sequence[Place], gbytes: float, rate: float, all_to_all: bool, step: int) -> list[Flow]:
    """Return the messages of a rank on each place, which change with the step.

    They go to its neighbour in a ring of random order, or to a rank at a distance, as an exchange of all with all does.
    """
    ranks = len(places)
    order = list(range(ranks))
    distance = 1
    if all_to_all:
        distance = 3 * step % (ranks - 1) + 1
    else:
        random.Random(step).shuffle(order)
    return [Flow(places[order[at]], places[order[(at + distance) % ranks]], gbytes, rate) for at in range(ranks)]
