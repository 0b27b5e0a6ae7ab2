#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Work through numbered tasks with one process for each GPU of the container; GPUs come and go meanwhile.

    gpu_pool.py TASKS

Prints "start GPU", "done TASK GPU" and "stop GPU". Before a GPU goes its process finishes its task and ends, so that
nothing has the device open when the host takes it; no task is lost or done twice.
"""

import contextlib
import multiprocessing
import os
import sys
import time
from multiprocessing.synchronize import Event, Lock
from typing import Any

from containerhost_guest import Follower

TASK = 0.2  # s
POLL_INTERVAL = 0.1  # s


def compute(task: int) -> None:
    """Stand for a kernel on the GPU that CUDA_VISIBLE_DEVICES names."""
    time.sleep(TASK)


def work(gpu: dict[str, Any], position: Any, tasks: int, stop: Event, output: Lock) -> None:
    os.environ["CUDA_VISIBLE_DEVICES"] = gpu["uuid"] or gpu["id"]  # before CUDA is loaded
    with contextlib.ExitStack() as opened:
        for node in gpu["nodes"][:1]:
            with contextlib.suppress(OSError):  # an emulated GPU has nodes that nothing serves
                opened.enter_context(open(node, "rb", buffering=0))
        while not stop.is_set():
            with position.get_lock():
                task, position.value = position.value, min(position.value + 1, tasks)
            if task == tasks:
                break
            compute(task)
            with output:
                print(f"done {task} {gpu['id']}", flush=True)


class Pool:
    def __init__(self, tasks: int) -> None:
        self._tasks = tasks
        self._next = multiprocessing.Value("q", 0)
        self._output = multiprocessing.Lock()
        self._workers: dict[str, tuple[multiprocessing.Process, Event]] = {}

    def fit(self, resources: dict[str, Any]) -> None:
        """Stop the processes of GPUs that go, and start those of GPUs that came."""
        gpus = {device["id"]: device for device in resources.get("devices", ()) if device["kind"].startswith("gpu")}
        leaving = {name: self._workers.pop(name) for name in self._workers.keys() - gpus.keys()}
        for _, stop in leaving.values():
            stop.set()
        for name, (worker, _) in leaving.items():
            worker.join()
            self._say(f"stop {name}")
        for name in gpus.keys() - self._workers.keys():
            stop = multiprocessing.Event()
            arguments = (gpus[name], self._next, self._tasks, stop, self._output)
            worker = multiprocessing.Process(target=work, args=arguments)
            self._say(f"start {name}")
            worker.start()
            self._workers[name] = worker, stop

    def is_busy(self) -> bool:
        return self._next.value < self._tasks or any(worker.is_alive() for worker, _ in self._workers.values())

    def _say(self, text: str) -> None:
        with self._output:
            print(text, flush=True)


def main() -> None:
    pool = Pool(int(sys.argv[1]))
    follower = Follower(pool.fit)
    while pool.is_busy():
        time.sleep(POLL_INTERVAL)
        follower.poll()


if __name__ == "__main__":
    main()
