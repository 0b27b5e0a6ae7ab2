# SPDX-License-Identifier: Apache-2.0
"""Read the public trace "cluster-trace-gpu-v2023" and make a stream of tasks of it."""

import csv
import pathlib
import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple

NODES, TASKS = "openb_node_list_all_node.csv", "openb_pod_list_default.csv"
GPU_MILLI = 1000


class Node(NamedTuple):
    """A host of the trace: thousandths of cores, MiB, GPUs."""

    name: str
    cpu: int
    memory: int
    gpus: int


class Task(NamedTuple):
    """A task of the trace.

    :ivar gpus: how many
    :ivar gpu: thousandths of each; less than 1000 only where ``gpus`` is 1
    """

    cpu: int
    memory: int
    gpus: int
    gpu: int

    @property
    def demand(self) -> int:
        """Return thousandths of GPUs in all."""
        return self.gpus * self.gpu


def read(directory: pathlib.Path) -> tuple[list[Node], list[Task]]:
    """Return the nodes and tasks.

    :raises ValueError: a file is missing or has other columns; names the file
    """
    nodes = [Node(row["sn"], int(row["cpu_milli"]), int(row["memory_mib"]), int(row["gpu"]))
             for row in _rows(directory / NODES, "sn", "cpu_milli", "memory_mib", "gpu")]
    tasks = [Task(int(row["cpu_milli"]), int(row["memory_mib"]), int(row["num_gpu"]),
                  int(row["gpu_milli"]) if int(row["num_gpu"]) else 0)
             for row in _rows(directory / TASKS, "cpu_milli", "memory_mib", "num_gpu", "gpu_milli")]
    return nodes, tasks


def _rows(path: pathlib.Path, *columns: str) -> list[dict[str, str]]:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            missing = set(columns) - set(reader.fieldnames or ())
            if missing:
                raise ValueError(f"{path} has no column {', '.join(sorted(missing))}: take the file of "
                                 f"cluster-trace-gpu-v2023")
            return list(reader)
    except FileNotFoundError as error:
        raise ValueError(f"{path} is missing: --trace is the directory with {NODES} and {TASKS} of "
                         f"cluster-trace-gpu-v2023") from error


def arrivals(tasks: Sequence[Task], capacity: int, ratio: float, seed: int) -> Iterator[Task]:
    """Return the tasks in random order, each once before any again, until they ask for ``ratio`` of the capacity.

    In thousandths of GPUs."""
    chance = random.Random(seed)
    asked = 0
    while asked < ratio * capacity:
        order = list(tasks)
        chance.shuffle(order)
        for task in order:
            if asked >= ratio * capacity:
                return
            asked += task.demand
            yield task
