# SPDX-License-Identifier: Apache-2.0
"""The console of a running container, both ways. LXD's console: a websocket of an operation."""

from containerhost.engines.lxd.client import LxdClient, document
from containerhost.engines.lxd.stream import Stream

WIDTH, HEIGHT = 80, 24  # characters; whoever is at the other end of a serial line cannot tell his own
FAREWELL = 3.0  # s that LXD may take to answer the end of the console's stream


class Console:
    """Attached from its making to :meth:`close`; what the guest prints is received, and what is sent is typed.

    :raises EngineError: the container does not run
    """

    def __init__(self, client: LxdClient, name: str) -> None:
        asked = f"attach to the console of container {name}"
        body = {"type": "console", "width": WIDTH, "height": HEIGHT}
        response = client.request("post", "instances", name, "console", asked=asked, json=body)
        operation = document(response, asked)["metadata"]
        path, secrets = f"/1.0/operations/{operation['id']}/websocket", operation["metadata"]["fds"]
        self._stream = Stream(client.settings, path, {"secret": secrets["0"]}, asked)
        try:
            # LXD attaches when the control stream is connected too.
            self._control = Stream(client.settings, path, {"secret": secrets["control"]}, asked)
        except BaseException:
            self._stream.close()
            raise

    def receive(self) -> bytes | None:
        """What the guest printed next; None when the console, or the container, has ended."""
        return self._stream.receive()

    def send(self, data: bytes) -> None:
        """:raises EngineUnavailable: the console has ended"""
        self._stream.send(data)

    def close(self) -> None:
        """The stream ends first, and LXD has answered that, before the control stream does: then LXD writes its last
        words to the stream. Another of its threads may be writing there what the guest prints, or that the container
        has ended, and LXD 5.0 panics at two who write at a time; to a stream that has ended nobody writes. Once LXD
        hangs up, it has let go of the console, which the next visitor can have."""
        self._stream.end(FAREWELL)
        self._control.close()
        self._stream.await_hang_up(FAREWELL)
        self._stream.close()
