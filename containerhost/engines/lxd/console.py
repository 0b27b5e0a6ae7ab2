# SPDX-License-Identifier: Apache-2.0
"""Attach to the console of a running container, in both directions, by a websocket of an LXD operation."""

from containerhost.engines.lxd.client import LxdClient, document
from containerhost.engines.lxd.stream import Stream

WIDTH, HEIGHT = 80, 24  # characters; a serial line has no window size
STALL_TIMEOUT = 30.0  # s for a guest to read its input; the client's end is not noticed meanwhile
FAREWELL = 3.0  # s for LXD to acknowledge the end of the console's stream


class Console:
    """Receive what the guest prints, and send it input, until :meth:`close`.

    :raises EngineError: the container does not run
    """

    def __init__(self, client: LxdClient, name: str) -> None:
        asked = f"attach to the console of container {name}"
        body = {"type": "console", "width": WIDTH, "height": HEIGHT}
        response = client.request("post", "instances", name, "console", asked=asked, json=body)
        operation = document(response, asked)["metadata"]
        path, secrets = f"/1.0/operations/{operation['id']}/websocket", operation["metadata"]["fds"]
        self._stream = Stream(client.settings, path, {"secret": secrets["0"]}, asked, STALL_TIMEOUT)
        try:
            # LXD attaches once the control stream is connected.
            self._control = Stream(client.settings, path, {"secret": secrets["control"]}, asked)
        except BaseException:
            self._stream.close()
            raise

    def receive(self) -> bytes | None:
        return self._stream.receive()

    def send(self, data: bytes) -> None:
        self._stream.send(data)

    def close(self) -> None:
        """Close the data stream, wait for LXD's answer, then close the control stream.

        In another order LXD 5.0 can panic: it writes its last message to the data stream while another of its
        threads writes the guest's output there; it does not write to a closed stream. The next client can attach
        once LXD has closed its end."""
        self._stream.end(FAREWELL)
        self._control.close()
        self._stream.await_hang_up(FAREWELL)
        self._stream.close()
