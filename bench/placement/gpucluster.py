# SPDX-License-Identifier: Apache-2.0
"""Keep what is free on the hosts of the trace, as arrays: cores, memory, and each GPU."""

from collections.abc import Sequence

import numpy as np

from bench.placement.trace import GPU_MILLI, Node, Task

Array = np.ndarray


class Cluster:
    """The free resources of all hosts; a host has a row.

    :ivar cpu, memory: free
    :ivar gpu: thousandths free of each GPU; 0 where the host has no such GPU
    """

    def __init__(self, nodes: Sequence[Node]) -> None:
        most = max(node.gpus for node in nodes)
        self.cpu = np.array([node.cpu for node in nodes])
        self.memory = np.array([node.memory for node in nodes])
        self.gpu = np.array([[GPU_MILLI * (at < node.gpus) for at in range(most)] for node in nodes])
        self.total_cpu, self.total_memory, self.total_gpu = self.cpu.copy(), self.memory.copy(), self.gpu.sum(axis=1)
        self.capacity = int(self.total_gpu.sum())

    def allocated(self) -> int:
        """Return the thousandths of GPUs that tasks have."""
        return self.capacity - int(self.gpu.sum())

    def room(self, task: Task) -> Array:
        """Return how many such tasks fit on each host."""
        return room(self.cpu, self.memory, self.gpu, task)

    def unusable(self, task: Task) -> Array:
        """Return the thousandths of free GPUs on each host that such tasks cannot use.

        They need none, or the host has not the cores or memory; as ``nova_lxd_ext.scheduler.capacity.unusable_devices``
        counts devices."""
        if not task.gpus:
            return self.gpu.sum(axis=1)
        by_gpus = room(self.cpu, self.memory, self.gpu, task._replace(cpu=0, memory=0))
        return (by_gpus - self.room(task)) * task.demand

    def take(self, host: int, task: Task, gpus: Sequence[int] | None = None) -> None:
        """Give a task to a host.

        :param gpus: which ones; else whole GPUs in their order, and a share of the fullest GPU that it fits on
        """
        if gpus is None:
            gpus = choose(self.gpu[host], task)
        self.cpu[host] -= task.cpu
        self.memory[host] -= task.memory
        self.gpu[host, list(gpus)] -= task.gpu
        if self.cpu[host] < 0 or self.memory[host] < 0 or (self.gpu[host] < 0).any():
            raise ValueError(f"host {host} has no room for {task}")


def room(cpu: Array, memory: Array, gpu: Array, task: Task) -> Array:
    """Return how many such tasks fit on hosts with this free."""
    counts = np.full(len(cpu), 1 << 30)
    for free, amount in ((cpu, task.cpu), (memory, task.memory)):
        if amount:
            counts = np.minimum(counts, free // amount)
    if task.gpus:
        counts = np.minimum(counts, (gpu // task.gpu).sum(axis=1) // task.gpus)
    return counts


def choose(gpu: Array, task: Task) -> list[int]:
    """Return the GPUs of one host for a task that fits there: those with the least free that is enough."""
    fitting = [at for at in np.argsort(gpu, kind="stable") if gpu[at] >= task.gpu]
    return fitting[:task.gpus] if task.gpus else []
