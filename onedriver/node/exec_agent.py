# SPDX-License-Identifier: Apache-2.0
"""Supervise a command in a container: start it, wait for its end, and store its outcome.

Called with the container's name and the file descriptor of a socket that represents the container's one command; a
connection to it ends the command. Standard input is the command and its input as JSON, so that other users cannot
see them. Standard output reports that the command has started, or why not.
"""

import base64
import contextlib
import json
import os
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from containerhost.engines import contract
from containerhost.errors import ContainerHostError
from onedriver.errors import DriverError
from onedriver.node import commands, single_instance
from onedriver.node.commands import BEGUN, Outcome
from onedriver.node.options import NodeOptions

Options = TypeVar("Options", bound=NodeOptions)


def run(name: str, fd: str, load: Callable[[], Options],
        begin: Callable[[Options, str, Sequence[str]], contract.Command]) -> int:
    """Run a command in a container until it ends.

    :param begin: starts a command in a container of that name
    """
    task = json.load(sys.stdin)
    with socket.socket(fileno=int(fd)) as listener:
        try:
            options = load()
            begun = begin(options, name, task["command"])
        except (ContainerHostError, DriverError) as error:
            print(error)
            return 1
        with contextlib.closing(begun):
            tell_and_hang_up()
            stay(begun, task, options, listener, name)
    return 0


def tell_and_hang_up() -> None:
    """Write the answer and close the output, whose reader waits for the end."""
    print(BEGUN, end="", flush=True)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def stay(begun: contract.Command, task: dict[str, Any], options: NodeOptions, listener: socket.socket,
         name: str) -> None:
    """Wait until the command ends, or another process requests this one's end."""
    over, found = threading.Event(), list[Outcome]()

    def finish() -> None:
        found.append(outcome(begun, base64.b64decode(task["stdin"]), options.exec_timeout))
        over.set()

    def await_end() -> None:
        # Detached, so that only the kernel closes it: then no part of this process remains.
        single_instance.await_end(listener).detach()
        over.set()

    for work in (finish, await_end):
        threading.Thread(target=work, daemon=True).start()
    over.wait()
    if not found:
        begun.kill()
        return
    commands.leave(Path(options.state) / name, found[0])
    # Exit at once: a client that sees the result may start the next command, and the interpreter's exit takes time.
    os._exit(0)


def outcome(begun: contract.Command, stdin: bytes, timeout: int) -> Outcome:
    try:
        done = begun.finish(stdin, timeout)
    except ContainerHostError as error:
        return Outcome("ERROR", 1, b"", str(error).encode())
    return Outcome("DONE", done.status, done.stdout, done.stderr)
