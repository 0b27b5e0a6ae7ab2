#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Work through numbered tasks with one process for each GPU of the container; GPUs come and go meanwhile.

    gpu_pool.py TASKS

Prints "start GPU", "done TASK GPU", "stop GPU", and "lost TASK GPU" where a process ended with its task, as with a GPU
that breaks: another one does the task, and that GPU gets a process at the next change that names it. Before a GPU goes
its process finishes its task and ends, so that nothing has the device open when the host takes it; no task is left
undone or done twice.
"""

import contextlib
import multiprocessing
import os
import sys
import time
from multiprocessing.connection import Connection, wait
from typing import Any

from containerhost_guest import Follower

TASK = 0.2  # s
POLL_INTERVAL = 0.5  # s


def work(gpu: dict[str, Any], tasks: Connection) -> None:
    os.environ["CUDA_VISIBLE_DEVICES"] = gpu["uuid"] or gpu["id"]  # before a library for GPUs is loaded
    for task in iter(tasks.recv, None):
        time.sleep(TASK)  # in the place of a computation
        tasks.send(task)


class Pool:
    def __init__(self, tasks: int) -> None:
        self._tasks = list(range(tasks - 1, -1, -1))
        self._workers: dict[str, tuple[multiprocessing.Process, Connection]] = {}
        self._busy: dict[str, int] = {}

    def fit(self, resources: dict[str, Any]) -> None:
        """Stop the processes of GPUs that go, and start those of GPUs that came."""
        gpus = {device["id"]: device for device in resources.get("devices", ()) if device["kind"].startswith("gpu")}
        for name in self._workers.keys() - gpus.keys():
            if name in self._busy and not self._done(name):
                continue
            self._send(name, None)
            self._workers.pop(name)[0].join()
            print(f"stop {name}", flush=True)
        for name in gpus.keys() - self._workers.keys():
            ours, theirs = multiprocessing.Pipe()
            worker = multiprocessing.Process(target=work, args=(gpus[name], theirs), daemon=True)
            worker.start()
            theirs.close()  # so that the process's end is seen here
            self._workers[name] = worker, ours
            print(f"start {name}", flush=True)

    def step(self) -> bool:
        """Give tasks to those that have none, and wait a little for results.

        :returns: whether there is more to do
        """
        for name in self._workers.keys() - self._busy.keys():
            if self._tasks:
                self._busy[name] = self._tasks.pop()
                self._send(name, self._busy[name])
        if not self._busy:
            time.sleep(POLL_INTERVAL)  # there is no GPU now
        ready = wait([tasks for _, tasks in self._workers.values()], POLL_INTERVAL) if self._busy else ()
        for name in [name for name in self._busy if self._workers[name][1] in ready]:
            self._done(name)
        return bool(self._busy or self._tasks)

    def _send(self, name: str, task: int | None) -> None:
        with contextlib.suppress(BrokenPipeError):  # it has ended, with a result
            self._workers[name][1].send(task)

    def _done(self, name: str) -> bool:
        """Take a worker's result.

        :returns: False if it has ended without one: another one does its task
        """
        task, (worker, tasks) = self._busy.pop(name), self._workers[name]
        try:
            print(f"done {tasks.recv()} {name}", flush=True)
        except (EOFError, ConnectionError):
            print(f"lost {task} {name}", flush=True)
            self._tasks.append(task)
            worker.join()
            del self._workers[name]
            return False
        return True


def main() -> None:
    pool = Pool(int(sys.argv[1]))
    follower = Follower(pool.fit)
    while pool.step():
        follower.poll()


if __name__ == "__main__":
    main()
