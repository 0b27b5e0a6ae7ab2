# SPDX-License-Identifier: Apache-2.0
"""Keep nova's PCI tracker up to date: nova itself passes it the host's devices only at nova-compute's start.

A card that fails later would be allocated again and again, one that recovers never. The tracker has a method for
that ("called periodically", according to its class), but nova does not call it again.
"""

import json
from collections.abc import Callable, Collection
from typing import Any

from nova import exception, objects
from nova.compute import vm_states
from nova.objects import fields
from oslo_log import log as logging

from containerhost import errors

LOG = logging.getLogger(__name__)
FAILED = frozenset({"error", "failed"})
ATTRIBUTES = ["pci_requests", "migration_context", "info_cache"]
HELD = frozenset({fields.PciDeviceStatus.CLAIMED, fields.PciDeviceStatus.ALLOCATED})


class PciTracker:
    """Report changed PCI devices to nova's PCI tracker, and free claims of cancelled moves.

    :param tracker: nova's PciDevTracker; None before nova has created it
    :param one_time_use: whether an entry is a device that stays reported in any state
    :param held: returns the addresses of a server's devices on the host
    """

    def __init__(self, tracker: Callable[[], Any], one_time_use: Callable[[dict[str, Any]], bool],
                 held: Callable[[objects.Instance], Collection[str]]) -> None:
        self._tracker = tracker
        self._one_time_use = one_time_use
        self._held = held
        self._reported: dict[str, dict[str, Any]] = {}
        self._news: dict[str, dict[str, Any]] | None = None
        self._swept = False
        self._refused: set[str] = set()

    def look(self, devices_json: str) -> None:
        """Store the host's devices (``pci_passthrough_devices``). Nova calls this without its lock."""
        self._news = {entry["address"]: entry for entry in json.loads(devices_json)}

    def refresh(self) -> None:
        """Pass changes to the tracker; only in ``update_provider_tree``, where nova holds its lock.

        Afterwards nova updates Placement and its database from the tracker.

        Devices of a server are never removed from the tracker: nova marks them, and removes them with the server.
        """
        news, tracker = self._news, self._tracker()
        if news is None or tracker is None:
            return
        self._news = None
        vanished = {address: entry for address, entry in self._reported.items() if address not in news}
        news |= {address: entry for address, entry in vanished.items() if self._one_time_use(entry)}
        if news == self._reported:
            return
        for address in sorted(vanished.keys() - news.keys()):
            LOG.warning("PCI device %s is no longer offered to servers; see `containerhost list`", address)
        tracker.update_devices_from_hypervisor_resources(json.dumps(list(news.values())))
        self._reported = news

    def refused(self, uuid: str) -> None:
        """Record that the migration of this server was refused after nova had claimed devices for it on this host."""
        self._refused.add(uuid)

    def free_unrequested(self, context: Any, host: str) -> None:
        """Free devices that were claimed for a cancelled move, while nova holds its lock.

        Once after nova-compute's start, which may follow a kill, this concerns all servers; later those on another
        host, or whose move was refused. Nova frees only those of moves that it ends itself.

        A device stays with its server if one of the server's requests is for it, and while the server moves. After a
        start, a request for a port that the server no longer has is dropped if its device is gone as well:
        nova-compute was killed while it detached the port.
        """
        tracker = self._tracker()
        if tracker is None:
            return
        held = [device for device in tracker.pci_devs if device.status in HELD]
        holders = {device.instance_uuid for device in held}
        self._refused &= holders
        starting = not self._swept
        if self._swept and holders:
            holders -= set(objects.InstanceList.get_uuids_by_host(context, host)) - self._refused
        self._swept = True
        for uuid in holders:
            try:
                instance = objects.Instance.get_by_uuid(context, uuid, expected_attrs=ATTRIBUTES)
            except exception.InstanceNotFound:
                self._refused.discard(uuid)
                continue  # nova frees the devices of deleted servers
            if instance.task_state is not None or instance.vm_state == vm_states.BUILDING \
                    or is_moving(context, instance):
                continue
            self._refused.discard(uuid)
            mine = [device for device in held if device.instance_uuid == uuid]
            if starting and instance.host == host:
                self._drop_left_requests(instance, mine)
            requests = instance.pci_requests.requests if instance.host == host and instance.pci_requests else ()
            wanted = {request.request_id for request in requests}
            for device in mine:
                if device.request_id and device.request_id not in wanted:
                    LOG.warning("PCI device %s was claimed for a cancelled move, or for a port that has left the "
                                "server: it is freed", device.address, instance_uuid=uuid)
                    tracker.free_device(device, instance)

    def _drop_left_requests(self, instance: objects.Instance, devices: Collection[objects.PciDevice]) -> None:
        ports = {vif["id"] for vif in instance.get_network_info()}
        try:
            here = self._held(instance)
        except errors.AllocationsUnreadable:  # reported at the driver's start; the servers' devices are unknown
            return
        gone = {device.request_id for device in devices if device.address not in here}
        left = [request for request in instance.pci_requests.requests if request.request_id in gone
                and request.requester_id and request.requester_id not in ports]
        if left:
            instance.pci_requests.requests = [request for request in instance.pci_requests.requests
                                              if request not in left]
            instance.save()


def is_moving(context: Any, instance: objects.Instance) -> bool:
    """Return whether the server is between two hosts or sizes; nova keeps its records of failed moves, too.

    A server that has left by a live migration continues to its destination, even after nova has cleared its task
    state."""
    if objects.MigrationList.get_by_filters(context, {
            "instance_uuid": instance.uuid, "source_compute": instance.host, "migration_type": "live-migration",
            "status": "post-migrating"}):
        return True
    if instance.migration_context is None:
        return False
    try:
        move = objects.Migration.get_by_id(context, instance.migration_context.migration_id)
    except exception.MigrationNotFound:
        return False
    return move.status not in FAILED
