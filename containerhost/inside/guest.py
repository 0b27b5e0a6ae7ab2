#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Run in a container and follow what the host gives it and takes (containerhost-guest).

    containerhost-guest show                  the resources, as JSON
    containerhost-guest watch [-- COMMAND...] follow changes: run COMMAND at each, acknowledge when it succeeds
    containerhost-guest ack                   acknowledge what is announced now
    containerhost-guest run -- COMMAND...     run a program with as many threads as it has cores, and its GPUs
    containerhost-guest faults                what is wrong with its devices, one a line; status 1 if anything is

One file, needing nothing but Python 3.9: copy it into an image as it is. What the host tells is described in
containerhost/inside/resources.py. It comes as the file resources.json, and, also before the host has written that, by
the guest API of LXD and Incus. ``ack.json`` beside it says which generation this guest knows: the host waits for it,
for a limited time, before it takes something away.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import socket
import subprocess
import sys
import time
from typing import Any

Document = dict[str, Any]

DIRECTORY = "/run/containerhost"
SOCKETS = ("/dev/lxd/sock", "/dev/incus/sock")
KEY = "/1.0/config/user.containerhost.resources"
# PyTorch and TensorFlow take those of OpenMP and MKL.
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
POLL_INTERVAL = 0.5  # s between two looks
NOT_TOLD = 3


class GuestApi(http.client.HTTPConnection):
    """HTTP by the socket that LXD puts into every container (LXD's documentation, "devlxd")."""

    def __init__(self, path: str) -> None:
        super().__init__("lxd", timeout=10)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def load(directory: str) -> Document | None:
    """Read the document; None when the host has written none. A file of an earlier start may be older than the guest
    API's document, and a file may be incomplete while it is written."""
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
            continue  # the other engine's, or none
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
    """Return what the host says is wrong with the container's devices; nothing where it says nothing."""
    try:
        with open(os.path.join(directory, "faults.json"), encoding="utf-8") as file:
            found = json.load(file)["faults"]
    except (OSError, ValueError, KeyError, TypeError):
        return []
    return [str(one) for one in found] if isinstance(found, list) else []


def acknowledge(directory: str, document: Document) -> None:
    """Say that this guest can live with what is announced, or else knows what it has."""
    os.makedirs(directory, exist_ok=True)
    unfinished = os.path.join(directory, "ack.json.new")
    with open(unfinished, "w", encoding="utf-8") as file:
        json.dump({"generation": latest(document)["generation"]}, file)
    os.replace(unfinished, os.path.join(directory, "ack.json"))


def latest(document: Document) -> Document:
    """Return the announced document, or else the current one."""
    return document.get("announced") or document


def environment(document: Document) -> dict[str, str]:
    """Return the variables that make libraries for computing use what there is: threads as cores, and the container's
    GPUs."""
    resources = latest(document)
    threads = str(max(1, min(int(resources["cpus"]["count"]), len(os.sched_getaffinity(0)))))
    # A host of an earlier version tells no variables.
    return {**dict.fromkeys(THREADS, threads), **resources.get("environment", {}),
            "CONTAINERHOST_GENERATION": str(resources["generation"])}


def run(command: list[str], document: Document) -> int:
    """Run a command with the environment of the document.

    :returns: its exit status
    """
    return subprocess.run(command, env={**os.environ, **environment(document)}, check=False).returncode


def watch(directory: str, command: list[str], looks: int | None = None) -> None:
    """Print every document that is new; forever, or as often as ``looks`` says."""
    seen = None
    while looks is None or looks > 0:
        document = load(directory)
        if document is not None and document != seen:
            seen = document
            print(json.dumps(document), flush=True)
            if not command or run(command, document) == 0:
                acknowledge(directory, document)
        if looks is not None:
            looks -= 1
        time.sleep(POLL_INTERVAL)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="containerhost-guest", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", default=DIRECTORY, help="where the host writes (%(default)s)")
    parser.add_argument("action", choices=("show", "watch", "ack", "run", "faults"))
    parser.add_argument("command", nargs="*", help="after --")
    chosen = parser.parse_args(arguments)
    if chosen.action == "run" and not chosen.command:
        parser.error("run needs a command: containerhost-guest run -- COMMAND...")
    if chosen.action == "watch":
        watch(chosen.directory, chosen.command)
    if chosen.action == "faults":
        found = faults(chosen.directory)
        print("\n".join(found), end="\n" if found else "")
        return 1 if found else 0
    document = load(chosen.directory)
    if document is None:
        print("containerhost-guest: this container's host tells nothing of its resources", file=sys.stderr)
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
