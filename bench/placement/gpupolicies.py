# SPDX-License-Identifier: Apache-2.0
"""Choose hosts for the tasks of the trace: this project's weigher, and the policies that it is compared with."""

import random
from collections.abc import Callable, Sequence

import numpy as np

from bench.placement.fragmentation import Gradient, Mix
from bench.placement.gpucluster import Cluster
from bench.placement.trace import GPU_MILLI, Task
from hpcplan import taskgroups

Policy = Callable[[Task], int | None]
"""Place a task and return its host, or None."""


def random_fit(cluster: Cluster, seed: int) -> Policy:
    """Return the policy that takes any host with room."""
    chance = random.Random(seed)

    def place(task: Task) -> int | None:
        hosts = np.flatnonzero(cluster.room(task) > 0)
        return _take(cluster, task, int(hosts[chance.randrange(len(hosts))]) if len(hosts) else None)
    return place


def best_fit(cluster: Cluster) -> Policy:
    """Return the policy that leaves the least free: cores, memory and GPUs, in parts of the largest host's."""
    sizes = cluster.total_cpu.max(), cluster.total_memory.max(), cluster.total_gpu.max()

    def place(task: Task) -> int | None:
        left = cluster.cpu / sizes[0] + cluster.memory / sizes[1] + cluster.gpu.sum(axis=1) / sizes[2]
        return _take(cluster, task, _least(left, cluster.room(task)))
    return place


def packing(cluster: Cluster) -> Policy:
    """Return the policy that takes GPUs in use before idle ones, and hosts in use before idle ones."""
    def place(task: Task) -> int | None:
        started = (cluster.gpu > 0) & (cluster.gpu < GPU_MILLI)
        shares = (started & (cluster.gpu >= task.gpu)).any(axis=1) if 0 < task.gpu < GPU_MILLI else False
        free = cluster.gpu.sum(axis=1)
        rank = np.where(shares, 0, np.where(free < cluster.total_gpu, 1, 2))
        return _take(cluster, task, _least(rank * 1e6 + free, cluster.room(task)))
    return place


def gradient(cluster: Cluster, tasks: Sequence[Task]) -> Policy:
    """Return the policy that increases fragmentation least."""
    return Gradient(cluster, Mix(tasks)).place


def weigher(cluster: Cluster) -> Policy:
    """Return the placement of ``TaskGroupWeigher``: a job of one server on hosts measured in such servers.

    That is in how many they have room for, and in their GPUs that the server cannot use.

    Hosts are given to ``taskgroups.place`` as the weigher gives them. Of the hosts between which only the name decides,
    the first one stands for all.
    """
    def place(task: Task) -> int | None:
        room, unusable = cluster.room(task), cluster.unusable(task)
        hosts = [taskgroups.Host(f"{at:05}", {"servers": int(room[at])}, unusable=int(unusable[at]))
                 for at in _first_of_equals(room, unusable)]
        if not hosts:
            return None
        plan = taskgroups.place([taskgroups.Member(0, 0, {"servers": 1})], hosts, 1)
        return _take(cluster, task, int(plan[0]))
    return place


def room_only(cluster: Cluster) -> Policy:
    """Return what the weigher did before it counted unusable devices: the host with room for the fewest such tasks."""
    def place(task: Task) -> int | None:
        room = cluster.room(task)
        return _take(cluster, task, _least(room.astype(float), room))
    return place


def _first_of_equals(*keys: np.ndarray) -> list[int]:
    """Return the hosts with room, one for each combination of keys; the first key is the room."""
    hosts = np.flatnonzero(keys[0] > 0)
    _, first = np.unique(np.stack([key[hosts] for key in keys]), axis=1, return_index=True)
    return [int(hosts[at]) for at in first]


def _least(score: np.ndarray, room: np.ndarray) -> int | None:
    score = np.where(room > 0, score, np.inf)
    host = int(np.argmin(score))
    return host if np.isfinite(score[host]) else None


def _take(cluster: Cluster, task: Task, host: int | None) -> int | None:
    if host is not None:
        cluster.take(host, task)
    return host

