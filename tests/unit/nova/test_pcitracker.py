# SPDX-License-Identifier: Apache-2.0
import json
from collections.abc import Callable, Collection
from types import SimpleNamespace
from typing import Any
from unittest import mock

import fixtures
import testtools
from nova import objects
from nova.compute import vm_states
from nova.conf import CONF
from oslo_config import fixture as config_fixture

from containerhost.errors import AllocationsUnreadable
from nova_lxd_ext.hardware import devicespec
from nova_lxd_ext.hardware.pcitracker import PciTracker
from tests.unit.nova import records


class Tracker:
    """Record the updates it gets, in order."""

    def __init__(self) -> None:
        self.told: list[list[str]] = []

    def update_devices_from_hypervisor_resources(self, devices: str) -> None:
        self.told.append([entry["address"] for entry in json.loads(devices)])


def entry(address: str, **more: Any) -> dict[str, Any]:
    return {"address": address, "vendor_id": "10de", "product_id": "20b0", "dev_type": "type-PCI",
            "parent_addr": None, **more}


class PciTrackerTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.log = self.useFixture(fixtures.FakeLogger())
        self.nova: Tracker | None = Tracker()
        self.tracker = PciTracker(lambda: self.nova, lambda found: found.get("once", False), lambda server: ())

    def look(self, *entries: dict[str, Any]) -> None:
        self.tracker.look(json.dumps(entries))
        self.tracker.refresh()

    def test_what_vanishes_and_what_comes_back_is_told(self) -> None:
        self.look(entry("a"), entry("b"))
        self.look(entry("a"))
        self.assertIn("PCI device b is no longer offered", self.log.output)
        self.look(entry("a"), entry("b"))
        self.assertEqual([["a", "b"], ["a"], ["a", "b"]], self.nova.told)

    def test_no_news_is_not_told(self) -> None:
        self.look(entry("a"))
        self.look(entry("a"))
        self.tracker.refresh()
        self.assertEqual([["a"]], self.nova.told)

    def test_a_change_of_a_device_is_news(self) -> None:
        self.look(entry("a", numa_node=0))
        self.look(entry("a", numa_node=1))
        self.assertEqual(2, len(self.nova.told))

    def test_a_device_for_one_use_stays(self) -> None:
        self.look(entry("a"), entry("b", once=True))
        self.look(entry("a"))
        self.look()
        self.assertEqual([["a", "b"], ["b"]], self.nova.told)
        self.assertNotIn("PCI device b", self.log.output)

    def test_before_nova_has_a_tracker_the_news_waits(self) -> None:
        nova, self.nova = self.nova, None
        self.look(entry("a"))
        self.nova = nova
        self.tracker.refresh()
        self.assertEqual([["a"]], self.nova.told)


class LeftRequestsTest(testtools.TestCase):
    def left(self, held: Callable[[Any], Collection[str]]) -> list[str]:
        """:returns: the requests of a server that has port p1 and had port p2, after a start"""
        requests = [SimpleNamespace(request_id=f"r{port}", requester_id=port) for port in ("p1", "p2", None)]
        server = mock.Mock(pci_requests=SimpleNamespace(requests=requests))
        server.get_network_info.return_value = [{"id": "p1"}]
        devices = [SimpleNamespace(address=request.request_id[1:], request_id=request.request_id)
                   for request in requests]
        PciTracker(lambda: None, lambda found: False, held)._drop_left_requests(server, devices)
        self.assertEqual(len(server.pci_requests.requests) < len(requests), server.save.called)
        return [request.request_id for request in server.pci_requests.requests]

    def test_of_a_port_that_left_it_is_dropped(self) -> None:
        self.assertEqual(["rp1", "rNone"], self.left(lambda server: ()))

    def test_stays_while_the_host_says_that_the_server_has_it_or_nothing(self) -> None:
        for held in (lambda server: {"p2"}, mock.Mock(side_effect=AllocationsUnreadable("it is damaged"))):
            self.assertEqual(["rp1", "rp2", "rNone"], self.left(held))


class UnrequestedTest(testtools.TestCase):
    def test_devices_of_a_server_that_has_left_for_here_stay(self) -> None:
        """A failed evacuation, or a start of nova 33, has cleared its task state; its source finishes the migration."""
        device = SimpleNamespace(address="0000:3b:00.0", status="claimed", instance_uuid=records.UUID, request_id="r1")
        server = records.instance(host="off", vm_state=vm_states.ACTIVE, task_state=None, migration_context=None)
        self.useFixture(fixtures.MockPatchObject(objects.Instance, "get_by_uuid", return_value=server))
        for left in (True, False):
            nova = SimpleNamespace(pci_devs=[device], free_device=mock.Mock())
            with self.subTest(left=left), mock.patch.object(
                    objects.MigrationList, "get_by_filters", return_value=[objects.Migration()] if left else []):
                PciTracker(mock.Mock(return_value=nova), mock.Mock(), mock.Mock()).free_unrequested(None, "here")
                self.assertEqual(not left, nova.free_device.called)


class OneTimeUseTest(testtools.TestCase):
    def test_the_operators_words_decide(self) -> None:
        config = self.useFixture(config_fixture.Config(CONF))
        for spec, expected in (({"vendor_id": "10de", "one_time_use": "true"}, True), ({"vendor_id": "10de"}, False),
                               ({"vendor_id": "1002", "one_time_use": "true"}, False)):
            config.config(group="pci", device_spec=[json.dumps(spec)], report_in_placement=True)
            found = devicespec.one_time_use(entry("0000:3b:00.0", label="l", numa_node=0, dev_id="d"))
            self.assertEqual(expected, found, spec)

    def test_without_any_spec_nothing_is(self) -> None:
        self.assertFalse(devicespec.one_time_use(entry("0000:3b:00.0")))
