"""Keeps nova's PCI tracker up to date: nova itself hands it the host's devices only when nova-compute starts.

A card that breaks later would be given to server after server, one that comes back to none. The tracker has a method
for that ("called periodically", says its class), but nobody calls it again.
"""

import json
import logging
from collections.abc import Callable
from typing import Any

LOG = logging.getLogger(__name__)


class PciTracker:
    """:param tracker: nova's PciDevTracker; None before nova has made it
    :param one_time_use: whether an entry is a device that stays with nova whatever happens to it
    """

    def __init__(self, tracker: Callable[[], Any], one_time_use: Callable[[dict[str, Any]], bool]) -> None:
        self._tracker = tracker
        self._one_time_use = one_time_use
        self._told: dict[str, dict[str, Any]] = {}
        self._news: dict[str, dict[str, Any]] | None = None

    def look(self, devices_json: str) -> None:
        """Remember what the host has now (``pci_passthrough_devices``). Nova calls for it without its lock."""
        self._news = {entry["address"]: entry for entry in json.loads(devices_json)}

    def refresh(self) -> None:
        """Tell the tracker, if there is news. Only where nova has its lock: in ``update_provider_tree``, after which
        nova brings Placement and its database in line with the tracker.

        What a server has is never taken from the tracker: nova marks it, and drops it when the server is gone.
        """
        news, tracker = self._news, self._tracker()
        if news is None or tracker is None:
            return
        self._news = None
        vanished = {address: entry for address, entry in self._told.items() if address not in news}
        news |= {address: entry for address, entry in vanished.items() if self._one_time_use(entry)}
        if news == self._told:
            return
        for address in sorted(vanished.keys() - news.keys()):
            LOG.warning("PCI device %s is not offered to servers any more; see `containerhost list`", address)
        tracker.update_devices_from_hypervisor_resources(json.dumps(list(news.values())))
        self._told = news
