# SPDX-License-Identifier: Apache-2.0
"""Run commands of OpenNebula in containers (``onevm exec``), one at a time in each.

oned waits only until a command has started. A separate process on the host supervises it and leaves the outcome in
the VM's directory. Each round of monitoring reports the outcome until two rounds have sent it: one report may reach
oned before the answer to the start of the command, after which oned waits for a report.
"""

import base64
import binascii
import contextlib
import dataclasses
import hashlib
import json
import os
import re
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Collection, Iterator
from pathlib import Path

from containerhost.linux.files import atomic_write
from containerhost.linux.run import detached
from onedriver import template
from onedriver.errors import BadInput, DriverError
from onedriver.node import single_instance

FILE = "command.json"
SENT_ONCE = "command.sent"  # name of the file after one round has sent it
DIRECTORY = re.compile(r"one-(?P<id>[0-9]{1,9})")
CANCEL_TIMEOUT = 30  # seconds
REPORTED_FOR = 3600  # seconds if no round acknowledges, as with an earlier release's script of the probe


class CommandFailed(DriverError):
    """Signal that the command did not start."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """Hold the result of a command that ran in a container: its status, exit code and output.

    :ivar status: DONE if the command exited, otherwise ERROR, with the reason in ``stderr``
    """

    status: str
    code: int
    stdout: bytes
    stderr: bytes


class Commands:
    """Start and cancel the commands of ``onevm exec`` in containers, one at a time in each.

    :param state: the driver's directory
    :param driver: its program has a command that starts one in a container and supervises it (exec_agent.py)
    """

    def __init__(self, state: Path, driver: str) -> None:
        self._state = state
        self._driver = driver

    def start(self, name: str, command: str, stdin: str) -> None:
        """Start a command in a container.

        :param name: of a container of this driver
        :param command: program and arguments, quoted as for a shell; no shell sees them
        :param stdin: base64
        :raises BadInput: one of these cannot be read
        :raises CommandFailed: the container is not running, or already has a command
        """
        task = json.dumps({"command": words(command), "stdin": base64.b64encode(decoded(stdin)).decode()})
        try:
            listener = single_instance.take(holder(name))
        except single_instance.AlreadyRunning as error:
            raise CommandFailed(f"container {name} runs a command already; wait for its end or cancel it "
                                "(onevm exec-cancel)") from error
        with listener:
            forget(self._state / name)
            problem = begun(self._driver, name, listener, task)
        if problem:
            raise CommandFailed(problem)

    def cancel(self, name: str) -> None:
        """Kill the container's command and discard its outcome. Idempotent. Raise AlreadyRunning if it does not end."""
        single_instance.end(holder(name), CANCEL_TIMEOUT)
        forget(self._state / name)


def forget(directory: Path) -> None:
    for file in (FILE, SENT_ONCE):
        (directory / file).unlink(missing_ok=True)


def leave(directory: Path, outcome: Outcome) -> None:
    """Store the outcome in the VM's directory for the rounds of monitoring, unless the VM has ended."""
    if directory.is_dir():
        atomic_write(directory / FILE, json.dumps({
            "STATUS": outcome.status, "RETURN_CODE": outcome.code,
            "STDOUT": base64.b64encode(outcome.stdout).decode(),
            "STDERR": base64.b64encode(outcome.stderr).decode()}).encode())
        os.utime(directory.parent)  # notifies the monitoring, which cannot read the file


def unreported(state: Path, sent: Collection[str] = ()) -> str:
    """Return the outcomes to report (vm/execution), one a line; ``sent`` has the tokens of the last round."""
    return "\n".join(lines(state, sent))


def lines(state: Path, sent: Collection[str]) -> Iterator[str]:
    for file in sorted((*state.glob(f"*/{FILE}"), *state.glob(f"*/{SENT_ONCE}"))):
        vm = DIRECTORY.fullmatch(file.parent.name)
        with contextlib.suppress(FileNotFoundError):  # removed by a new command, or at the VM's end
            line = template.vector("VM", {"ID": vm["id"], **json.loads(file.read_text(encoding="utf-8"))}) if vm else ""
            if not line or (file.name == SENT_ONCE and token(line) in sent):
                file.unlink()
                continue
            if time.time() - file.stat().st_mtime > REPORTED_FOR:
                file.unlink()  # it is reported once more, because the clock may have jumped
            elif token(line) in sent:
                file.rename(file.with_name(SENT_ONCE))
            yield line


def token(line: str) -> str:
    """Return an identifier of a reported line."""
    return hashlib.sha256(line.encode()).hexdigest()[:16]


def words(command: str) -> list[str]:
    try:
        found = shlex.split(command)
    except ValueError as error:
        raise BadInput(f"the command {command[:80]!r} cannot be split into words: {error}") from error
    if not found:
        raise BadInput("the command is empty")
    return found


def decoded(stdin: str) -> bytes:
    try:
        return base64.b64decode(stdin, validate=True)
    except (binascii.Error, ValueError) as error:
        raise BadInput(f"the command's input is not in base64: {error}") from error


def holder(name: str) -> str:
    return f"one-command/{name}"


def begun(driver: str, name: str, listener: socket.socket, task: str) -> str:
    """Start the supervisor of a command, and return the reason of a failure; empty on success."""
    process = detached([sys.executable, "-m", driver, "command", name, str(listener.fileno())],
                       stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=[listener.fileno()])
    if process.stdin is None or process.stdout is None:
        raise CommandFailed("no pipes to the process that runs the command")
    with process.stdin as pipe:
        pipe.write(task.encode())
    with process.stdout as answer:
        told = answer.read().decode(errors="replace")
    if told.startswith(BEGUN):
        return ""
    return told.strip() or "the process that runs the command died"


BEGUN = "begun\n"
