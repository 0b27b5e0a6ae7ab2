# SPDX-License-Identifier: Apache-2.0
"""Place each task where it increases the fragmentation of GPUs least.

Source: "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient Descent", USENIX ATC
2023. The fragmentation of a host is what tasks of the usual mix expect not to be able to use of its free GPUs: all of
it where a task does not fit or needs no GPU, else those GPUs that have less free than the task needs of each.
"""

import collections
from collections.abc import Sequence

import numpy as np

from bench.placement.gpucluster import Array, Cluster, choose, room
from bench.placement.trace import Task

COVERED = 0.95
"""The mix has the most frequent kinds of tasks, which are this part of all."""


class Mix:
    """The kinds of tasks that are usual, with the probability of each."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self.kinds: list[Task] = []
        counts = []
        for kind, count in collections.Counter(tasks).most_common():
            if sum(counts) >= COVERED * len(tasks):
                break
            self.kinds.append(kind)
            counts.append(count)
        self.weights = np.array(counts) / sum(counts)

    def fragmentation(self, cpu: Array, memory: Array, gpu: Array) -> Array:
        """Return the fragmentation of hosts with this free, in thousandths of GPUs."""
        free = gpu.sum(axis=1)
        result = np.zeros(len(cpu))
        for kind, weight in zip(self.kinds, self.weights, strict=True):
            unusable = free
            if kind.gpus:
                small = np.where(gpu < kind.gpu, gpu, 0).sum(axis=1)
                unusable = np.where(room(cpu, memory, gpu, kind) > 0, small, free)
            result += weight * unusable
        return result


class Gradient:
    """Chooses host and GPU by the increase of fragmentation.

    Keeps the increase on every host for each kind of task, and computes it again only for hosts that changed since.
    """

    def __init__(self, cluster: Cluster, mix: Mix) -> None:
        self._cluster, self._mix = cluster, mix
        self._version = np.zeros(len(cluster.cpu), dtype=np.int64)
        self._now = mix.fragmentation(cluster.cpu, cluster.memory, cluster.gpu)
        self._known: dict[Task, tuple[Array, Array, Array]] = {}

    def place(self, task: Task) -> int | None:
        """Place a task; return its host, or None if it fits nowhere."""
        increase, gpus = self._increase(task)
        host = int(np.argmin(increase))
        if not np.isfinite(increase[host]):
            return None
        cluster = self._cluster
        shared = task.gpus == 1
        cluster.take(host, task, [int(gpus[host])] if shared else None)
        self._version[host] += 1
        row = slice(host, host + 1)
        self._now[host] = self._mix.fragmentation(cluster.cpu[row], cluster.memory[row], cluster.gpu[row])[0]
        return host

    def _increase(self, task: Task) -> tuple[Array, Array]:
        """Return the increase on each host, infinite where the task does not fit, and the GPU with the least."""
        hosts = len(self._version)
        if task not in self._known:
            self._known[task] = (np.full(hosts, np.inf), np.zeros(hosts, dtype=int), np.full(hosts, -1, dtype=np.int64))
        increase, gpus, seen = self._known[task]
        changed = np.flatnonzero(seen != self._version)
        seen[changed] = self._version[changed]
        increase[changed] = np.inf
        fitting = changed[self._cluster.room(task)[changed] > 0]
        if len(fitting):
            increase[fitting], gpus[fitting] = self._after(task, fitting)
        return increase, gpus

    def _after(self, task: Task, hosts: Array) -> tuple[Array, Array]:
        cluster, now = self._cluster, self._now[hosts]
        cpu, memory, gpu = cluster.cpu[hosts] - task.cpu, cluster.memory[hosts] - task.memory, cluster.gpu[hosts]
        if task.gpus != 1:
            after = gpu.copy()
            for row in range(len(hosts)):
                after[row, choose(gpu[row], task)] -= task.gpu
            return self._mix.fragmentation(cpu, memory, after) - now, np.zeros(len(hosts), dtype=int)
        rows, at = np.nonzero(gpu >= task.gpu)
        after = gpu[rows]
        after[np.arange(len(rows)), at] -= task.gpu
        values = np.full(gpu.shape, np.inf)
        values[rows, at] = self._mix.fragmentation(cpu[rows], memory[rows], after)
        best = values.argmin(axis=1)
        return values[np.arange(len(hosts)), best] - now, best
