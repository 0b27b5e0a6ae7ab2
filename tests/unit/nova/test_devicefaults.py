# SPDX-License-Identifier: Apache-2.0
import dataclasses
from collections.abc import Sequence

import testtools

from containerhost.allocation.faults import Fault
from containerhost.allocation.states import State
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
        self.assertEqual([f"uuid-1 A device is faulty: {GPU}: Xid 48"],
                         self.told(held, with_health("Xid 48")))
        self.assertEqual([], self.told(held, with_health("Xid 48")))
        self.assertEqual([f"uuid-1 A device is faulty: {GPU}: Xid 48; Xid 79"],
                         self.told(held, with_health("Xid 48", "Xid 79")))
        self.assertEqual([f"Device {GPU} is healthy again, or its server released it"], self.told(held, with_health()))
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


class TestNotifying(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.sent: list[Sequence[Fault]] = []
        self.faults = DeviceFaults(notify=self.sent.append)

    def look(self, records: dict[str, Allocation], *health: str) -> list[dict[str, tuple[str, ...]]]:
        """Return what is sent at a look: complaints by device."""
        self.sent.clear()
        self.faults.look(records, with_health(*health))
        return [{fault.device_id: fault.complaints for fault in found} for found in self.sent]

    def test_first_look_and_each_change_are_sent_complete(self) -> None:
        self.assertEqual([{}], self.look({}))
        self.assertEqual([], self.look({}))
        self.assertEqual([{GPU: ("Xid 79",)}], self.look({}, "Xid 79"))
        self.assertEqual([{GPU: ("Xid 79",), OTHER: ()}], self.look(record(OTHER, blocked="why"), "Xid 79"))
        self.assertEqual([{OTHER: ()}], self.look(record(OTHER, blocked="why")))
        self.assertEqual([], self.look(record(OTHER, blocked="why")))
        self.assertEqual([{}], self.look({}))

    def test_next_process_sends_anew_what_holds(self) -> None:
        self.look({}, "Xid 79")
        self.faults = DeviceFaults(notify=self.sent.append)
        self.assertEqual([{GPU: ("Xid 79",)}], self.look({}, "Xid 79"))

    def test_state_and_holder_are_sent_and_their_change_too(self) -> None:
        held = record(GPU)
        self.look(held, "Xid 79")
        self.assertEqual([(State.CLAIMED, "uuid-1")], [(fault.state, fault.consumer.uuid) for fault in self.sent[0]])
        detached = {GPU: dataclasses.replace(held[GPU], state=State.DETACHED)}
        self.assertEqual([{GPU: ("Xid 79",)}], self.look(detached, "Xid 79"))

    def test_device_that_left_the_host_is_sent_as_long_as_it_is_allocated(self) -> None:
        self.assertEqual([{"0000:99:00.0": ("this host has no such device any more",)}],
                         self.look(record("0000:99:00.0")))
        self.assertEqual([{}], self.look({}))

    def test_devices_of_the_host_itself_are_not_sent(self) -> None:
        found = with_health("Xid 79")
        own = Inventory(tuple(dataclasses.replace(device, host_use=("display",)) if device.id == GPU else device
                              for device in found.devices))
        self.faults.look({}, own)
        self.assertEqual([()], self.sent)
