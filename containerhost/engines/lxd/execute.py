# SPDX-License-Identifier: Apache-2.0
"""Run a command in a container, with bytes for its standard input.

LXD's exec: each of the command's streams is a websocket of the operation; the command begins when all are connected.
"""

import contextlib
import json
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from containerhost import errors
from containerhost.engines.contract import KEPT, Executed
from containerhost.engines.lxd.client import LxdClient, document
from containerhost.engines.lxd.stream import Stream

KILL = json.dumps({"command": "signal", "signal": 9}).encode()
UNRUNNABLE = {"Command not found": 127, "Command not executable": 126}
STREAMS = ("control", "0", "1", "2")


class Command:
    """Run a command in a container, from the creation of this object."""

    def __init__(self, client: LxdClient, name: str, command: Sequence[str]) -> None:
        self._client = client
        self._asked = asked = f"run {command[0]} in container {name}"
        body = {"command": list(command), "wait-for-websocket": True, "interactive": False, "environment": {}}
        response = client.request("post", "instances", name, "exec", asked=asked, json=body)
        self._operation = document(response, asked)["metadata"]
        path, secrets = f"/1.0/operations/{self._operation['id']}/websocket", self._operation["metadata"]["fds"]
        with contextlib.ExitStack() as stack:
            self._streams = {key: stack.enter_context(Stream(client.settings, path, {"secret": secrets[key]}, asked))
                             for key in STREAMS}
            self._open = stack.pop_all()

    def finish(self, stdin: bytes, timeout: int) -> Executed:
        end = time.monotonic() + timeout
        # A separate thread: a command that writes before it reads, or never reads, would block the sender.
        sender = threading.Thread(target=self._send_input, args=(stdin,), daemon=True)
        sender.start()
        parts = all_drained([self._streams["1"], self._streams["2"]], end)
        try:
            if parts is None:
                raise errors.EngineTimeout(f"{self._asked}: its output does not end")
            # The command may close its outputs and continue.
            left = max(1, round(end - time.monotonic()))
            return Executed(exit_status(self._client, self._operation, self._asked, left), *parts)
        except errors.EngineTimeout as error:
            self.kill()
            raise errors.EngineTimeout(f"{self._asked}: not done within {timeout} s; it is killed") from error
        finally:
            if sender.is_alive():  # the daemon may not have noticed that the command no longer reads
                self._streams["0"].abort()

    def _send_input(self, stdin: bytes) -> None:
        with contextlib.suppress(errors.EngineUnavailable):  # the command has ended
            self._streams["0"].send(stdin)
        self._streams["0"].end_of_input()

    def kill(self) -> None:
        with contextlib.suppress(errors.EngineUnavailable):  # the command has ended
            self._streams["control"].send(KILL)

    def close(self) -> None:
        self._open.close()


def exit_status(client: LxdClient, operation: Mapping[str, Any], asked: str, timeout: int) -> int:
    """Return the exit status, or a shell's for a command that cannot be run, for which LXD fails the operation.

    :param timeout: seconds that it may still take
    """
    try:
        return client.wait(operation, asked, timeout)["return"]
    except errors.EngineError as error:
        for words, status in UNRUNNABLE.items():
            if str(error).endswith(words):
                return status
        raise


def all_drained(streams: Sequence[Stream], end: float) -> list[bytes] | None:
    """Read all streams in parallel, so that the command does not block; None if they do not end in time."""
    parts: list[bytes | None] = [None] * len(streams)

    def drain(place: int) -> None:
        with contextlib.suppress(errors.EngineTimeout):
            parts[place] = drained(streams[place], end)

    # Not concurrent.futures: with eventlet's threads (nova 33) its queue blocks the whole process.
    threads = [threading.Thread(target=drain, args=(place,), daemon=True) for place in range(len(streams))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return None if None in parts else [part for part in parts if part is not None]


def drained(stream: Stream, end: float) -> bytes:
    """Return the beginning of a stream, reading it to its end."""
    kept = b""
    while (data := stream.receive(max(0.0, end - time.monotonic()))) is not None:
        kept += data[:KEPT - len(kept)]
    return kept
