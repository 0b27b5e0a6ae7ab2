#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Run in a container and follow the resources that the host assigns to it (containerhost-guest).

    containerhost-guest show                  the resources, as JSON
    containerhost-guest watch [-- COMMAND...] follow changes: run COMMAND at each, acknowledge when it succeeds
    containerhost-guest ack                   acknowledge the current announcement
    containerhost-guest run -- COMMAND...     run a program with as many threads as it has cores, and its GPUs
    containerhost-guest follow -- COMMAND...  the same, and end and start the program at each change; before the
                                              container is stopped, only end it
    containerhost-guest faults                its devices' faults, one a line; status 1 if there are any

A single file that needs only Python 3.9: copy it into an image as it is, and as containerhost_guest.py to where a
program imports :class:`Follower` from. The document is described in containerhost/guest/resources.py. It comes as
the file resources.json, and, even before the host has written that, by the guest API of LXD and Incus. ``ack.json``
beside it has the generation that this guest knows: the host waits for it, for a limited time, before it removes
resources.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

Document = dict[str, Any]

DIRECTORY = os.environ.get("CONTAINERHOST_DIRECTORY", "/run/containerhost")
SOCKETS = ("/dev/lxd/sock", "/dev/incus/sock")
KEY = "/1.0/config/user.containerhost.resources"
# PyTorch and TensorFlow use the variables of OpenMP and MKL.
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
POLL_INTERVAL = 0.5  # s between two polls
END_TIMEOUT = 20.0  # s for a command to end; shorter than the notice period of the host
END_INTERVAL = 0.05  # s
NOT_TOLD = 3
MPI_LAUNCHERS = frozenset({"mpirun", "mpiexec", "orterun", "prterun", "srun", "aprun", "jsrun"})
# Variables in which Open MPI, MPICH (and its derivatives) and MVAPICH2 pass the number of ranks.
RANKS = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE")
MPI = ("an MPI program keeps the ranks it was started with until it ends, so it cannot follow its resources. Run it "
       "from a script that continues from a checkpoint with as many ranks as there are cores, or keep the size fixed")


class CannotFollow(Exception):
    """Signal that the program cannot follow its resources."""


class GuestApi(http.client.HTTPConnection):
    """Send HTTP requests to the socket that LXD puts into every container (LXD's documentation, "devlxd")."""

    def __init__(self, path: str) -> None:
        super().__init__("lxd", timeout=10)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def load(directory: str) -> Document | None:
    """Read the document; None if the host has not written it, or not completely.

    A file of an earlier start may be older than the guest API's document."""
    found = [document for document in (parse(by_file(directory)), parse(by_guest_api())) if document]
    return max(found, key=lambda document: document["generation"], default=None)


def by_file(directory: str) -> str | None:
    try:
        with open(os.path.join(directory, "resources.json"), encoding="utf-8") as file:
            return file.read()
    except OSError:
        return None


def by_guest_api() -> str | None:
    for path in SOCKETS:
        api = GuestApi(path)
        try:
            api.request("GET", KEY)
            answer = api.getresponse()
            if answer.status == 200:
                return answer.read().decode("utf-8", "replace")
        except (OSError, http.client.HTTPException):
            continue  # the socket of the other engine, or no socket
        finally:
            api.close()
    return None


def parse(text: str | None) -> Document | None:
    try:
        found = json.loads(text) if text else None
    except ValueError:
        return None
    return found if isinstance(found, dict) and isinstance(found.get("generation"), int) else None


def faults(directory: str) -> list[str]:
    """Return the faults of the container's devices that the host reports; none if it reports none."""
    try:
        with open(os.path.join(directory, "faults.json"), encoding="utf-8") as file:
            found = json.load(file)["faults"]
    except (OSError, ValueError, KeyError, TypeError):
        return []
    return [str(one) for one in found] if isinstance(found, list) else []


def acknowledge(directory: str, document: Document) -> None:
    """Acknowledge the announced resources, or else the present ones."""
    os.makedirs(directory, exist_ok=True)
    unfinished = os.path.join(directory, "ack.json.new")
    with open(unfinished, "w", encoding="utf-8") as file:
        json.dump({"generation": latest(document)["generation"]}, file)
    os.replace(unfinished, os.path.join(directory, "ack.json"))


def latest(document: Document) -> Document:
    """Return the announced document, or else the current one."""
    return document.get("announced") or document


def environment(document: Document) -> dict[str, str]:
    """Return the variables that inform computing libraries about the cores and the container's GPUs."""
    resources = latest(document)
    # A host of an earlier version sends no variables.
    return {**dict.fromkeys(THREADS, str(threads(resources))), **resources.get("environment", {}),
            "CONTAINERHOST_GENERATION": str(resources["generation"]),
            "CONTAINERHOST_STOP": "1" if resources.get("stop") else ""}


def threads(resources: Document) -> int:
    """Return how many threads can run at once: the number that the host states, limited by the usable CPUs."""
    allowed = len(os.sched_getaffinity(0))
    return max(1, min(int(resources["cpus"]["count"]), allowed)) if resources else allowed


class Follower:
    """Apply each change of the resources between two steps of a program, then acknowledge it.

        follower = Follower(lambda resources: torch.set_num_threads(threads(resources)))
        for batch in batches:
            follower.poll()
            train(batch)

    Only root can acknowledge: a program of another user follows, but the host does not wait for it.

    :param apply: takes the resources, during an announcement the coming ones; {} if the host states nothing and the
        usable CPUs have changed. ``stop`` in them announces that the container will be stopped: time for a
        checkpoint. If it raises, nothing is acknowledged
    :raises CannotFollow: this process is one of the ranks of an MPI program
    """

    def __init__(self, apply: Callable[[Document], object], directory: str = DIRECTORY) -> None:
        if any(os.environ.get(name, "1") != "1" for name in RANKS):
            raise CannotFollow(MPI)
        self._apply = apply
        self._directory = directory
        self._seen: object = None
        self.poll()

    def poll(self) -> bool:
        """Check for a change, with two system calls if there is none."""
        seen = signature(os.path.join(self._directory, "resources.json")), os.sched_getaffinity(0)
        if seen == self._seen:
            return False
        document = load(self._directory)
        self._apply(latest(document) if document else {})
        if document:
            with contextlib.suppress(OSError):  # the file system is full, or the program runs as another user
                acknowledge(self._directory, document)
        self._seen = seen
        return True


def signature(path: str) -> tuple[int, int] | None:
    """Return the attributes by which a file differs from its replacement; None without a file."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def follow(command: list[str], directory: str) -> int:
    """Run a command, ending and restarting it at each change, for a program that continues from a checkpoint.

    Before a stop of the container it is only ended; if the stop is cancelled, it is started again.

    :raises CannotFollow: it starts an MPI program
    """
    name = os.path.basename(command[0])
    if name.partition(".")[0] in MPI_LAUNCHERS:
        raise CannotFollow(f"{name}: {MPI}")
    jobs: list[subprocess.Popen[bytes]] = []

    def restart(resources: Document) -> None:
        end_all()
        if resources.get("stop"):
            return
        variables = environment(resources) if resources else dict.fromkeys(THREADS, str(threads({})))
        jobs.append(subprocess.Popen(command, env={**os.environ, **variables}, start_new_session=True,
                                     preexec_fn=unblock))  # noqa: PLW1509  (this process has one thread)

    def unblock() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def end_all() -> None:
        while jobs:
            end(jobs.pop())

    # Blocked, so that the signal cannot arrive between a command's start and its entry in `jobs`.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        follower = Follower(restart, directory)
        while not jobs or jobs[-1].poll() is None:
            if signal.sigtimedwait({signal.SIGTERM}, POLL_INTERVAL):
                return 128 + signal.SIGTERM
            follower.poll()
        return jobs[-1].returncode
    finally:
        end_all()
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def end(job: subprocess.Popen[bytes]) -> None:
    """Terminate a command and all its descendants, and kill those that remain after :data:`END_TIMEOUT`."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        until = time.monotonic() + END_TIMEOUT
        with contextlib.suppress(ProcessLookupError):
            os.killpg(job.pid, number)
            while time.monotonic() < until:
                job.poll()  # reap the process: until then it counts as a member of its group
                os.killpg(job.pid, 0)
                time.sleep(END_INTERVAL)


def run(command: list[str], document: Document) -> int:
    """Run a command with the environment of the document."""
    return subprocess.run(command, env={**os.environ, **environment(document)}, check=False).returncode


def watch(directory: str, command: list[str], looks: int | None = None) -> None:
    """Print every new document, forever or ``looks`` times."""
    seen = None
    while looks is None or looks > 0:
        document = load(directory)
        if document is not None and document != seen:
            seen = document
            print(json.dumps(document), flush=True)
            if not command or run(command, document) == 0:
                with contextlib.suppress(OSError):  # a full file system must not end the program
                    acknowledge(directory, document)
        if looks is not None:
            looks -= 1
        time.sleep(POLL_INTERVAL)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="containerhost-guest", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", default=DIRECTORY, help="where the host writes (%(default)s)")
    parser.add_argument("action", choices=("show", "watch", "ack", "run", "follow", "faults"))
    parser.add_argument("command", nargs="*", help="after --")
    chosen = parser.parse_args(arguments)
    if chosen.action in ("run", "follow") and not chosen.command:
        parser.error(f"{chosen.action} needs a command: containerhost-guest {chosen.action} -- COMMAND...")
    if chosen.action == "watch":
        watch(chosen.directory, chosen.command)
    if chosen.action == "follow":
        try:
            return follow(chosen.command, chosen.directory)
        except CannotFollow as error:
            parser.error(str(error))
    if chosen.action == "faults":
        found = faults(chosen.directory)
        print("\n".join(found), end="\n" if found else "")
        return 1 if found else 0
    document = load(chosen.directory)
    if document is None:
        print("containerhost-guest: this container's host does not publish its resources", file=sys.stderr)
        return NOT_TOLD
    if chosen.action == "show":
        print(json.dumps(document, indent=2))
    elif chosen.action == "ack":
        acknowledge(chosen.directory, document)
    else:
        os.execvpe(chosen.command[0], chosen.command, {**os.environ, **environment(document)})  # noqa: S606
    return 0


if __name__ == "__main__":
    sys.exit(main())
