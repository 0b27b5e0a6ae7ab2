"""Runs a command in a container, with bytes for its standard input, and waits for its end.

LXD's exec: each of the command's streams is a websocket of the operation; the command begins when all are connected.
"""

import contextlib
import json
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from containerhost import errors
from containerhost.engines import Executed
from containerhost.engines.lxd.client import LxdClient, document
from containerhost.engines.lxd.stream import Stream

KEPT = 64 * 1024  # bytes of output; a tenant decides how much there is
KILL = json.dumps({"command": "signal", "signal": 9}).encode()
UNRUNNABLE = {"Command not found": 127, "Command not executable": 126}
STREAMS = ("control", "0", "1", "2")


def execute(client: LxdClient, name: str, command: Sequence[str], stdin: bytes, timeout: int) -> Executed:
    """:param command: program and arguments; they are visible to everybody in the container
    :param timeout: seconds, after which it is killed
    :raises EngineTimeout: it was killed
    """
    asked = f"run {command[0]} in container {name}"
    body = {"command": list(command), "wait-for-websocket": True, "interactive": False, "environment": {}}
    operation = document(client.request("post", "instances", name, "exec", asked=asked, json=body), asked)["metadata"]
    end = time.monotonic() + timeout
    with contextlib.ExitStack() as stack:
        path, secrets = f"/1.0/operations/{operation['id']}/websocket", operation["metadata"]["fds"]
        streams = {key: stack.enter_context(Stream(client.settings, path, {"secret": secrets[key]}, asked))
                   for key in STREAMS}
        streams["0"].send(stdin)
        streams["0"].end_of_input()
        parts = all_drained([streams["1"], streams["2"]], end)
        if parts is None:
            streams["control"].send(KILL)
            raise errors.EngineTimeout(f"{asked}: not done within {timeout} s; it is killed")
        return Executed(exit_status(client, operation, asked), b"".join(parts))


def exit_status(client: LxdClient, operation: Mapping[str, Any], asked: str) -> int:
    """A command that cannot be run has a shell's status; LXD says so by failing the operation."""
    try:
        return client.wait(operation, asked)["return"]
    except errors.EngineError as error:
        for words, status in UNRUNNABLE.items():
            if str(error).endswith(words):
                return status
        raise


def all_drained(streams: Sequence[Stream], end: float) -> list[bytes] | None:
    """Side by side, because a command stops when nobody reads one of them; None when they do not end in time."""
    parts: list[bytes | None] = [None] * len(streams)

    def drain(place: int) -> None:
        with contextlib.suppress(errors.EngineTimeout):
            parts[place] = drained(streams[place], end)

    # Not a pool of concurrent.futures: its queue holds up the whole process where threads are eventlet's (nova 33).
    threads = [threading.Thread(target=drain, args=(place,), daemon=True) for place in range(len(streams))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return None if None in parts else [part for part in parts if part is not None]


def drained(stream: Stream, end: float) -> bytes:
    """The beginning of what a stream brings until its end."""
    kept = b""
    while (data := stream.receive(max(0.0, end - time.monotonic()))) is not None:
        kept += data[:KEPT - len(kept)]
    return kept
