# SPDX-License-Identifier: Apache-2.0
"""Log servers whose devices break or recover: nova shows it only in diagnostics."""

from collections.abc import Mapping

from oslo_log import log as logging

from containerhost import faults
from containerhost.allocation.store import Allocation
from containerhost.devices.scan import Inventory
from nova_lxd_ext.hardware.pci import DRIVER

LOG = logging.getLogger(__name__)


class DeviceFaults:
    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    def look(self, records: Mapping[str, Allocation], inventory: Inventory) -> None:
        """Say what has changed since the last look."""
        present = dict(self._now(records, inventory))
        for device_id, fault in present.items():
            if self._known.get(device_id) != fault:
                LOG.warning("A device is broken: %s", fault, instance_uuid=records[device_id].consumer.uuid)
        for device_id in self._known.keys() - present.keys():
            LOG.info("Device %s is well again, or its server gave it back", device_id)
        self._known = present

    @staticmethod
    def _now(records: Mapping[str, Allocation], inventory: Inventory) -> list[tuple[str, str]]:
        held = (record for record in records.values() if record.consumer.driver == DRIVER and record.blocked is None)
        return [(record.device_id, fault) for record in held for fault in faults.of([record], inventory)]
