from types import SimpleNamespace
from typing import Any

import fixtures
import testtools
from nova.virt.driver import ComputeDriver

from nova_lxd_ext import compat

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
