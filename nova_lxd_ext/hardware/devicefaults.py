# SPDX-License-Identifier: Apache-2.0
"""Report servers' devices that fail, are tainted or recover, in the log and in the server's container.

Nova shows it only in diagnostics. Operators' programs are notified of all devices of the host."""

from collections.abc import Callable, Mapping, Sequence

from oslo_log import log as logging

from containerhost.allocation import faults
from containerhost.allocation.store import Allocation
from containerhost.inventory.scan import Inventory
from nova_lxd_ext.hardware.pci import DRIVER

LOG = logging.getLogger(__name__)


class DeviceFaults:
    """Track the faults of servers' devices, and report changes to the log and to the containers.

    :param tell: notifies a container of its devices' faults, and returns whether it succeeded
    :param notify: called with the faults of all devices of the host, at the first check and after changes
    """

    def __init__(self, tell: Callable[[str, Sequence[str]], bool] = lambda name, faults: True,
                 notify: Callable[[Sequence[faults.Fault]], None] = lambda found: None) -> None:
        self._tell = tell
        self._notify = notify
        self._notified: tuple[faults.Fault, ...] | None = None
        self._known: dict[str, str] = {}
        self._told: dict[str, tuple[str, ...]] | None = None  # container -> faults; None before the first poll

    def look(self, records: Mapping[str, Allocation], inventory: Inventory) -> None:
        """Log and report what has changed since the last call.

        The first call of a process also withdraws notices of an earlier process. A container that could not be
        notified, for example because it is stopped, is notified by a later call."""
        held = [record for record in records.values() if record.consumer.driver == DRIVER and record.blocked is None]
        present = {record.device_id: fault for record in held for fault in faults.of([record], inventory)}
        for device_id, fault in present.items():
            if self._known.get(device_id) != fault:
                LOG.warning("A device is faulty: %s", fault, instance_uuid=records[device_id].consumer.uuid)
        for device_id in self._known.keys() - present.keys():
            LOG.info("Device %s is healthy again, or its server released it", device_id)
        self._known = present
        self._tell_containers(held)
        if (found := faults.of_host(records, inventory)) != self._notified:
            self._notify(found)
            self._notified = found

    def _tell_containers(self, held: Sequence[Allocation]) -> None:
        now: dict[str, list[str]] = {record.consumer.container: [] for record in held}
        for record in held:
            now[record.consumer.container] += [self._known[record.device_id]] if record.device_id in self._known else []
        told: dict[str, tuple[str, ...]] = {}
        for container, found in now.items():
            # A new container has not been notified of anything.
            known = None if self._told is None else self._told.get(container, ())
            if known == tuple(found) or self._tell(container, found):
                told[container] = tuple(found)
            elif known is not None:
                told[container] = known
        self._told = told
