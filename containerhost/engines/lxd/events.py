# SPDX-License-Identifier: Apache-2.0
"""Receive changes of containers from the daemon immediately, as LXD's events of type lifecycle."""

import json
from collections.abc import Mapping
from typing import Any

from containerhost import errors
from containerhost.engines.contract import Change, Status
from containerhost.engines.lxd.client import LxdClient
from containerhost.engines.lxd.stream import Stream

# LXD's lifecycle actions (documentation of events) that change whether a container runs.
ACTIONS: Mapping[str, Status] = {
    "instance-started": Status.RUNNING,
    "instance-restarted": Status.RUNNING,
    "instance-stopped": Status.STOPPED,
    "instance-shutdown": Status.STOPPED,
    "instance-paused": Status.FROZEN,
    "instance-resumed": Status.RUNNING,
}


class Events:
    """Receive changes of containers from the daemon's event stream until :meth:`close`."""

    def __init__(self, client: LxdClient) -> None:
        self._stream = Stream(client.settings, "/1.0/events", {"type": "lifecycle"}, "listen to the daemon's events")

    def receive(self, timeout: float | None = None) -> Change:
        """Wait for the next change.

        :param timeout: seconds; None waits as long as the connection lives
        :raises EngineTimeout: there was none in time
        :raises EngineUnavailable: the connection has ended
        """
        while True:
            message = self._stream.receive(timeout)
            if message is None:
                raise errors.EngineUnavailable("listen to the daemon's events: the daemon has closed the connection")
            change = change_of(json.loads(message))
            if change is not None:
                return change

    def close(self) -> None:
        self._stream.close()


def change_of(event: Mapping[str, Any]) -> Change | None:
    """Return the change of an event; None if it does not change whether a container runs."""
    metadata = event.get("metadata") or {}
    status = ACTIONS.get(metadata.get("action", ""))
    parts = metadata.get("source", "").partition("?")[0].split("/")
    if status is None or parts[:3] != ["", "1.0", "instances"] or len(parts) != 4:
        return None
    return Change(parts[3], status)
