# SPDX-License-Identifier: Apache-2.0
import dataclasses

import testtools

from containerhost.allocation.store import Allocation, Consumer
from containerhost.inventory.scan import Inventory, scan
from nova_lxd_ext.hardware.devicefaults import LOG, DeviceFaults
from tests.unit.containerhost.hosts import shared

GPU, OTHER = "0000:3b:00.0", "0000:af:00.0"


def record(device: str, driver: str = "nova", blocked: str | None = None) -> dict[str, Allocation]:
    return {device: Allocation(device, Consumer(driver, "lxd", "instance-1", "uuid-1"), blocked=blocked)}


def with_health(*health: str) -> Inventory:
    return Inventory(tuple(dataclasses.replace(device, health=health) if device.id == GPU else device
                           for device in scan(shared("small")).devices))


class TestDeviceFaults(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.faults = DeviceFaults()

    def told(self, records: dict[str, Allocation], inventory: Inventory) -> list[str]:
        """Return the messages, each after the UUID of its server, if it has one."""
        with self.assertLogs("nova_lxd_ext.hardware.devicefaults") as log:
            LOG.info("looking")  # assertLogs fails if there is none
            self.faults.look(records, inventory)
        return [" ".join([*([each.instance_uuid] if hasattr(each, "instance_uuid") else []), each.getMessage()])
                for each in log.records[1:]]

    def test_each_fault_is_told_once_and_its_end_too(self) -> None:
        held = record(GPU)
        self.assertEqual([], self.told(held, with_health()))
        self.assertEqual([f"uuid-1 A device is broken: {GPU}: Xid 48"],
                         self.told(held, with_health("Xid 48")))
        self.assertEqual([], self.told(held, with_health("Xid 48")))
        self.assertEqual([f"uuid-1 A device is broken: {GPU}: Xid 48; Xid 79"],
                         self.told(held, with_health("Xid 48", "Xid 79")))
        self.assertEqual([f"Device {GPU} is well again, or its server released it"], self.told(held, with_health()))
        self.assertEqual([], self.told(held, with_health()))

    def test_what_is_gone_is_told(self) -> None:
        self.assertIn("no such device any more", self.told(record("0000:99:00.0"), with_health())[0])

    def test_only_of_what_servers_have(self) -> None:
        for records in ({}, record(OTHER), record(GPU, driver="lxdone"), record(GPU, blocked="why")):
            self.assertEqual([], self.told(records, with_health("Xid 48")))


class TestTelling(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.told: list[tuple[str, list[str]]] = []
        self.able = True
        self.faults = DeviceFaults(self.tell)

    def tell(self, container: str, faults) -> bool:
        self.told.append((container, list(faults)))
        return self.able

    def look(self, *health: str) -> list[tuple[str, list[str]]]:
        self.told.clear()
        self.faults.look(record(GPU), with_health(*health))
        return self.told

    def test_first_look_withdraws_what_an_earlier_process_told(self) -> None:
        self.assertEqual([("instance-1", [])], self.look())
        self.assertEqual([], self.look())

    def test_container_is_told_each_change_once(self) -> None:
        self.look()
        self.assertEqual([("instance-1", [f"{GPU}: Xid 48"])], self.look("Xid 48"))
        self.assertEqual([], self.look("Xid 48"))
        self.assertEqual([("instance-1", [])], self.look())

    def test_stopped_container_is_told_later(self) -> None:
        self.look()
        self.able = False
        self.assertEqual(1, len(self.look("Xid 48")))
        self.able = True
        self.assertEqual([("instance-1", [f"{GPU}: Xid 48"])], self.look("Xid 48"))
        self.assertEqual([], self.look("Xid 48"))

    def test_new_server_with_sound_devices_costs_nothing(self) -> None:
        self.faults.look({}, with_health())
        self.assertEqual([], self.look())
