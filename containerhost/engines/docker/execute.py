# SPDX-License-Identifier: Apache-2.0
"""Run a command in a container, with bytes for its standard input.

Docker's exec (Engine API, "Exec"): its connection carries the input, and in the other direction both outputs, in
frames of eight bytes (kind, three zeros, length) and content. Docker cannot kill a command: root on the host does.
"""

import contextlib
import secrets
import struct
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from containerhost import errors
from containerhost.engines.contract import KEPT, Executed
from containerhost.engines.docker.attached import Attached
from containerhost.engines.docker.client import DockerClient
from containerhost.engines.docker.privileged import DockerPrivileged
from containerhost.linux.process.commandtree import MARK

FRAME = struct.Struct(">BxxxL")
STDOUT, STDERR = 1, 2
CHUNK = 64 * 1024  # bytes
SHORT, LONG = 0.02, 0.5  # s between two polls
GRACE = 1.0  # s to drain its output; processes that it left running may keep its streams open
KILL_TIMEOUT = 10.0  # s
NOT_FOUND = (b"executable file not found", b"no such file or directory")  # in runc's messages


class Command:
    """Run a command in a container, from the creation of this object."""

    def __init__(self, client: DockerClient, privileged: DockerPrivileged, name: str, command: Sequence[str]) -> None:
        self._client = client
        self._privileged = privileged
        self._asked = f"run {command[0]} in container {name}"
        self._container = int(client.container(name)["State"]["Pid"])
        self._mark = secrets.token_hex(16)
        self._process = client.exec_create(name, command, {MARK: self._mark})
        self._connection = client.exec_start(self._process)
        self._output = {STDOUT: b"", STDERR: b""}

    def finish(self, stdin: bytes, timeout: int) -> Executed:
        """Send all input, and wait for the end of the command.

        :param timeout: seconds, after which it is killed
        :raises EngineTimeout: it was killed
        :raises EngineError: Docker no longer reports its state; it is killed
        """
        end = time.monotonic() + timeout
        # Read and write in parallel: a command may block until its output is read.
        threading.Thread(target=self._send, args=(stdin,), daemon=True).start()
        reader = threading.Thread(target=self._drain, daemon=True)
        reader.start()
        try:
            told = self._await_end(reader, end)
        except errors.EngineError:
            self.kill()
            raise
        reader.join(GRACE)
        return executed(told, self._output[STDOUT], self._output[STDERR])

    def _await_end(self, reader: threading.Thread, end: float) -> Mapping[str, Any]:
        pause = SHORT
        while True:
            drained = not reader.is_alive()
            told = self._client.exec_inspect(self._process)
            if told["ExitCode"] is not None:
                return told
            if drained and not told["Running"]:
                raise errors.EngineError(f"{self._asked}: Docker did not start it")
            if time.monotonic() > end:
                raise errors.EngineTimeout(f"{self._asked}: not done in time; it is killed")
            if drained:
                time.sleep(pause)
                pause = min(LONG, 2 * pause)
            else:
                reader.join(max(0.0, min(LONG, end - time.monotonic())))

    def kill(self) -> None:
        """Kill the command with all processes that it started."""
        limit = time.monotonic() + KILL_TIMEOUT
        unfinished = True
        while unfinished and time.monotonic() < limit:
            unfinished = self._end()
        self._end()

    def _end(self) -> bool:
        """Kill the command's processes.

        :returns: whether it runs, or may still be started by Docker
        """
        try:
            told = self._client.exec_inspect(self._process)
        except errors.EngineError:
            told = {"ExitCode": 0}  # the container or its engine has ended
        unfinished = told["ExitCode"] is None
        self._privileged.end_command(self._container, int(told["Pid"]) if unfinished else 0, self._mark)
        return unfinished

    def close(self) -> None:
        self._connection.close()

    def _send(self, stdin: bytes) -> None:
        with contextlib.suppress(OSError):  # the command has ended
            self._connection.send(stdin)
            self._connection.end_of_input()

    def _drain(self) -> None:
        with contextlib.suppress(OSError, ValueError):  # the connection was closed
            for kind, data in frames(self._connection):
                if kind in self._output:
                    self._output[kind] += data[:KEPT - len(self._output[kind])]


def frames(connection: Attached) -> Iterator[tuple[int, bytes]]:
    """Yield pieces of both output streams, each with its stream, until both end."""
    while len(header := connection.read(FRAME.size)) == FRAME.size:
        kind, size = FRAME.unpack(header)
        while size and (data := connection.read(min(size, CHUNK))):
            size -= len(data)
            yield kind, data


def executed(told: Mapping[str, Any], stdout: bytes, stderr: bytes) -> Executed:
    """Return the result of a command; for one that could not be run, as a shell does.

    Docker writes the reason into its output."""
    if not told["Pid"] and told["ExitCode"] in (126, 127):
        why = stderr or stdout
        return Executed(127 if any(words in why for words in NOT_FOUND) else 126, b"", why)
    return Executed(told["ExitCode"], stdout, stderr)
