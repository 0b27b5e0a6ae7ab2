# SPDX-License-Identifier: Apache-2.0
"""Test the metrics that the exporter reports of an emulated host."""

import dataclasses
import os
from pathlib import Path

import fixtures
import testtools
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from containerhost.allocation.store import AllocationStore, Consumer
from containerhost.allocation.timings import Operation, Timings
from containerhost.errors import HostActionFailed, SpecError
from containerhost.operator.exporter import jobmapping, server
from containerhost.operator.exporter.families import families
from containerhost.operator.exporter.sample import Sample, read
from containerhost.vendors.base import Use
from tests.unit.containerhost.hosts import MEMORY, Broken, shared

GPU, CUT, SLICE, VF = "0000:3b:00.0", "0000:3c:00.0", "0000:3c:00.0/gi1/ci0", "0000:5e:00.1"
CONSUMER = Consumer("nova", "lxd", "instance-00000001", "11111111-1111-4111-8111-111111111111")
OTHER = Consumer("lxdone", "lxd", "one-7", "7")
GIB = 1 << 30


def value(found, name, **labels):
    """The value of the only sample that has these labels; None when there is none."""
    values = [sample.value for family in found for sample in family.samples
              if sample.name == f"containerhost_{name}" and labels.items() <= sample.labels.items()]
    assert len(values) < 2, values
    return values[0] if values else None


class ExporterCase(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.directory = Path(self.useFixture(fixtures.TempDir(rootdir=MEMORY)).path)
        self.store = AllocationStore(self.directory / "owners")
        self.host = shared("mixed")

    def claim(self, device_id: str, consumer: Consumer = CONSUMER) -> None:
        inventory = read(self.host, self.store).inventory
        self.store.claim([inventory.get(device_id)], consumer, inventory.related)
        self.store.attach([device_id], consumer)

    def sample(self) -> Sample:
        return dataclasses.replace(read(self.host, self.store), uses={
            GPU: Use(75, 10, 30 * GIB, 250.5, 0), CUT: Use(None, None, 20 * GIB, 99.0, 1),
            SLICE: Use(None, None, 4 * GIB, None)})


class Families(ExporterCase):
    def test_use_names_the_container_that_has_the_gpu(self) -> None:
        self.claim(GPU)
        found = list(families(self.sample()))
        holder = {"driver": "nova", "engine": "lxd", "container": "instance-00000001"}
        self.assertEqual(0.75, value(found, "gpu_utilization_ratio", device=GPU, **holder))
        self.assertEqual(0.1, value(found, "gpu_memory_utilization_ratio", device=GPU, **holder))
        self.assertEqual(30 * GIB, value(found, "gpu_memory_free_bytes", device=GPU, **holder))
        self.assertEqual(250.5, value(found, "gpu_power_watts", device=GPU, **holder))
        self.assertEqual(1, value(found, "allocation", device=GPU, state="attached", uuid=CONSUMER.uuid, **holder))

    def test_slice_tells_only_what_the_vendor_does(self) -> None:
        self.claim(SLICE, OTHER)
        found = list(families(self.sample()))
        self.assertEqual(4 * GIB, value(found, "gpu_memory_free_bytes", device=SLICE, container="one-7"))
        self.assertIsNone(value(found, "gpu_utilization_ratio", device=SLICE))
        self.assertIsNone(value(found, "gpu_utilization_ratio", device=CUT))
        self.assertEqual(99.0, value(found, "gpu_power_watts", device=CUT, container=""))

    def test_counters_of_a_virtual_function_are_bytes(self) -> None:
        self.claim(VF)
        found = list(families(self.sample()))
        device = self.sample().inventory.get(VF)
        number = int(device.rdma.ibdev.removeprefix("mlx5_"))
        self.assertEqual(4 * 1000 * number, value(found, "rdma_port_received_bytes_total", device=VF, port="1",
                                                  container="instance-00000001"))
        self.assertEqual(1000 * number + 2, value(found, "rdma_port_received_packets_total", device=VF))

    def test_sick_device(self) -> None:
        tree = self.useFixture(Broken("mixed"))
        tree.rebind(GPU, "vfio-pci")
        found = list(families(read(tree.host, self.store)))
        self.assertEqual(0, value(found, "device_healthy", device=GPU))
        self.assertEqual(1, value(found, "device_complaints", device=GPU))
        self.assertEqual(1, value(found, "device_healthy", device="0000:83:00.0"))

    def test_unreadable_records_are_told(self) -> None:
        self.claim(GPU)
        (self.store.directory / "0000:3b:00.0.json").write_text("?")
        found = list(families(read(self.host, self.store)))
        self.assertEqual(0, value(found, "allocations_readable"))
        self.assertIsNone(value(found, "allocation", device=GPU))
        self.assertEqual(1, value(found, "device_healthy", device=GPU))

    def test_operations_by_driver_and_result(self) -> None:
        timings = Timings(self.store.directory)
        with timings.measured(Operation.ACQUIRE, CONSUMER):
            pass
        with timings.measured(Operation.RELEASE, CONSUMER) as complaints:
            complaints.append("it is not clean")
        found = list(families(read(self.host, self.store)))
        labels = {"driver": "nova", "operation": "acquire", "result": "done"}
        self.assertEqual(1, value(found, "operation_seconds_count", **labels))
        self.assertEqual(1, value(found, "operation_seconds_bucket", le="+Inf", **labels))
        self.assertEqual(1, value(found, "operation_seconds_count", operation="release", result="failed"))
        self.assertEqual(0, value(found, "operation_seconds_count", operation="acquire", result="failed"))

    def test_page_is_valid(self) -> None:
        self.claim(GPU)
        registry = CollectorRegistry()
        registry.register(server.HostCollector(self.host, self.store))
        found = list(text_string_to_metric_families(generate_latest(registry).decode()))
        self.assertEqual(22, sum(len(family.samples) for family in found if family.name == "containerhost_device_info"))


class JobMapping(ExporterCase):
    def setUp(self) -> None:
        super().setUp()
        self.path = self.directory / "jobs"
        self.path.mkdir()

    def files(self) -> dict[str, str]:
        return {file.name: file.read_text() for file in self.path.iterdir()}

    def test_file_of_each_gpu_follows_the_allocations(self) -> None:
        self.claim(GPU)
        self.claim(SLICE, OTHER)
        self.claim("0000:3c:00.0/gi2/ci0")
        (self.path / "README").write_text("not ours")
        jobmapping.write(self.path, jobmapping.jobs(self.sample()))
        self.assertEqual({"0": "instance-00000001\n", "1": "instance-00000001\none-7\n", "README": "not ours"},
                         self.files())
        self.store.block(GPU, "not clean")
        jobmapping.write(self.path, jobmapping.jobs(self.sample()))
        self.assertEqual({"1", "README"}, self.files().keys())

    def test_unchanged_file_is_not_written_again(self) -> None:
        self.claim(GPU)
        jobmapping.write(self.path, jobmapping.jobs(self.sample()))
        before = os.stat(self.path / "0").st_ino
        jobmapping.write(self.path, jobmapping.jobs(self.sample()))
        self.assertEqual(before, os.stat(self.path / "0").st_ino)

    def test_scrape_goes_on_without_the_directory(self) -> None:
        registry = CollectorRegistry()
        registry.register(server.HostCollector(self.host, self.store, self.path / "missing"))
        self.assertIn(b"containerhost_device_info", generate_latest(registry))


class Address(testtools.TestCase):
    def test_addresses(self) -> None:
        self.assertEqual(("127.0.0.1", 9869), server.parsed("127.0.0.1:9869"))
        self.assertEqual(("::1", 1), server.parsed("[::1]:1"))
        for bad in ("9869", ":9869", "localhost:9869", "127.0.0.1:", "127.0.0.1:0", "127.0.0.1:65536", "127.0.0.1:-1"):
            self.assertRaises(SpecError, server.parsed, bad)

    def test_port_in_use_is_told(self) -> None:
        collector = server.HostCollector(shared("small"), AllocationStore(Path("/nonexistent")))
        self.assertRaises(HostActionFailed, server.serve, "192.0.2.1:9869", collector)
