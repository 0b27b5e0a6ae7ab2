# SPDX-License-Identifier: Apache-2.0
from types import SimpleNamespace
from typing import Any

import fixtures
import testtools
from nova.compute import build_results
from nova.virt.driver import ComputeDriver

from nova_lxd_ext import compat
from tests.unit.nova import records

METHOD = "nova.virt.driver.ComputeDriver.process_instances_at_startup"


class TrackerTest(testtools.TestCase):
    def test_where_nova_keeps_it(self) -> None:
        virtapi = SimpleNamespace(_compute=SimpleNamespace(rt=SimpleNamespace(pci_tracker="tracker")))
        self.assertEqual("tracker", compat.pci_tracker(virtapi))

    def test_without_nova_compute_there_is_none(self) -> None:
        self.assertIsNone(compat.pci_tracker(None))


class StartTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.processed: list[Any] = []
        self.useFixture(fixtures.MonkeyPatch("nova.objects.InstanceList.get_by_host",
                                             lambda cls, context, host, expected_attrs: f"servers of {host}"))

    def start(self) -> list[Any]:
        compat.process_instances_at_startup("host1", lambda context, instances: self.processed.append(instances))
        return self.processed

    def test_nova_that_shows_the_servers_itself_is_left_to_it(self) -> None:
        self.useFixture(fixtures.MonkeyPatch(METHOD, lambda: None))
        self.assertEqual([], self.start())

    def test_for_nova_that_does_not_they_are_fetched(self) -> None:
        if hasattr(ComputeDriver, "process_instances_at_startup"):
            self.useFixture(fixtures.MonkeyPatch(METHOD, fixtures.MonkeyPatch.delete))
        self.assertEqual(["servers of host1"], self.start())


class LastHostTest(testtools.TestCase):
    """nova-compute without ``retry`` ends a boot, and its reason is the fault."""

    def setUp(self) -> None:
        super().setUp()
        self.result = build_results.FAILED
        self.deleted: list[str] = []
        self.requests: list[Any] = []
        client = SimpleNamespace(delete_allocation_for_instance=lambda context, uuid, force: self.deleted.append(uuid))
        self.manager = SimpleNamespace(reportclient=client, _do_build_and_run_instance=self.build)
        self.useFixture(fixtures.MonkeyPatch("nova.compute.utils.delete_arqs_if_needed",
                                             lambda context, instance, uuids: self.requests.append(uuids)))
        compat.keep_reason_of_last_host(SimpleNamespace(_compute=self.manager))

    def build(self, context: Any, instance: Any, filter_properties: Any, requested_networks: Any = None,
              host_list: Any = None) -> Any:
        self.retried = "retry" in filter_properties
        return self.result

    def ended(self, host_list: Any) -> tuple[bool, list[str], list[Any]]:
        """Return whether nova may hand it back, and what is removed."""
        self.deleted.clear()
        self.requests.clear()
        result = self.manager._do_build_and_run_instance(
            None, records.instance(), {"retry": {"num_attempts": 1}}, [SimpleNamespace(arq_uuid="arq")],
            host_list=host_list)
        self.assertEqual(self.result, result)
        return self.retried, list(self.deleted), list(self.requests)

    def test_with_another_host_nova_is_left_to_it(self) -> None:
        for hosts in (["lxd-2"], None):
            with self.subTest(hosts):
                self.assertEqual((True, [], []), self.ended(hosts))

    def test_without_another_host_nova_compute_ends_the_boot(self) -> None:
        self.assertEqual((False, [], [["arq"]]), self.ended([]))
        self.result = build_results.FAILED_BY_POLICY
        self.assertEqual((False, [records.UUID], [["arq"]]), self.ended([]))
        self.result = build_results.ACTIVE
        self.assertEqual((False, [], []), self.ended([]))

    def test_without_nova_compute_nothing_is_to_do(self) -> None:
        compat.keep_reason_of_last_host(None)


class RebuildTest(testtools.TestCase):
    def test_rebuild_that_fails_where_the_server_is_keeps_its_allocations(self) -> None:
        deleted: list[str] = []
        tracker = SimpleNamespace(delete_allocation_for_evacuated_instance=(
            lambda context, instance, node, node_type="source": deleted.append(node)))
        compat.keep_allocations_of_rebuilds(SimpleNamespace(_compute=SimpleNamespace(rt=tracker)))
        server = records.instance(node="here")
        for node in ("here", "there"):  # an evacuation to there
            tracker.delete_allocation_for_evacuated_instance(None, server, node, node_type="destination")
        self.assertEqual(["there"], deleted)

    def test_without_nova_compute_there_is_nothing_to_keep(self) -> None:
        compat.keep_allocations_of_rebuilds(None)
