# SPDX-License-Identifier: Apache-2.0
import queue
import threading
import types
from unittest import mock

import fixtures
import testtools

from containerhost.devices.health import rules
from containerhost.devices.model import Device, Kind, Slice
from containerhost.inventory.scan import scan
from containerhost.linux.sysfs import Host
from containerhost.vendors.nvidia import nvml, nvmlhealth, reset
from containerhost.vendors.nvidia.vendor import Nvidia
from tests.fakehost.nvml import Nvml
from tests.unit.containerhost.hosts import shared

CUT = "0000:3c:00.0"


class Refused(Exception):
    def __init__(self, words, value=3):
        super().__init__(words)
        self.value = value


class Library:
    """NVML of a host with a MIG GPU, one without MIG, and one that has died."""

    NVMLError = Refused
    NVML_DEVICE_MIG_ENABLE = 1
    NVML_ERROR_NO_PERMISSION = 4
    NVML_NVLINK_MAX_LINKS = 18
    NVML_FEATURE_ENABLED = 1

    def nvmlDeviceGetCount(self):
        return 3

    def nvmlDeviceGetHandleByIndex(self, index):
        if index == 1:
            raise Refused("GPU is lost")
        return index

    def nvmlDeviceGetHandleByPciBusId(self, address):
        raise Refused("No permission", 4) if address == b"0000:b0:00.0" else Refused("GPU is lost", 15)

    def nvmlDeviceGetPciInfo(self, handle):
        return types.SimpleNamespace(domain=0, bus=(0x3c, 0, 0x3b)[handle], device=0)

    def nvmlDeviceGetUUID(self, handle):
        return f"MIG-{handle}" if isinstance(handle, tuple) else f"GPU-{handle}".encode()

    def nvmlDeviceGetName(self, handle):
        return "NVIDIA A100-SXM4-40GB" + (" MIG 1g.5gb" if isinstance(handle, tuple) else "")

    def nvmlDeviceGetMemoryInfo(self, handle):
        return types.SimpleNamespace(total=5 << 30 if isinstance(handle, tuple) else 40 << 30, free=1 << 30)

    def nvmlDeviceGetUtilizationRates(self, handle):
        if handle == 0:
            raise Refused("Not Supported")
        return types.SimpleNamespace(gpu=0, memory=30)

    def nvmlDeviceGetPowerUsage(self, handle):
        return 250_600

    def nvmlDeviceGetMigMode(self, handle):
        if handle == 2:
            raise Refused("Not Supported")
        return 1, 1

    def nvmlDeviceGetNvLinkState(self, handle, link):
        if handle == 2 or link > 3:
            raise Refused("Not Supported")
        return int(link != 1)

    def nvmlDeviceGetNvLinkRemotePciInfo(self, handle, link):
        return types.SimpleNamespace(domain=0, bus=0x3b if link else 0xc5, device=0)

    def nvmlDeviceGetMaxMigDeviceCount(self, handle):
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle, index):
        if index > 1:
            raise Refused("Not Found")
        return handle, index

    def nvmlDeviceGetGpuInstanceId(self, handle):
        return handle[1] + 1

    def nvmlDeviceGetComputeInstanceId(self, handle):
        return 0


class Facts(testtools.TestCase):
    def test_what_is_read(self):
        found = dict(nvml._gpus(Library()))
        self.assertEqual({"0000:3c:00.0", "0000:3b:00.0"}, set(found))
        self.assertEqual(nvml.Gpu("GPU-2", "NVIDIA A100-SXM4-40GB", 40 << 30, {}, nvml.Use(0, 30, 1 << 30, 250.6),
                                  nvmlhealth.State(), index=2), found["0000:3b:00.0"])
        self.assertEqual(nvml.Use(None, None, 1 << 30, 250.6), found["0000:3c:00.0"].use)
        self.assertEqual(nvml.MigSlice("MIG-(0, 1)", "1g.5gb", 5 << 30, 1 << 30), found["0000:3c:00.0"].slices[2, 0])

    def test_links_between_gpus_are_counted_and_those_to_switches_are_not(self):
        found = dict(nvml._gpus(Library()))
        self.assertEqual(("0000:c5:00.0", "0000:3b:00.0", "0000:3b:00.0"), found["0000:3c:00.0"].peers)
        self.assertEqual({frozenset({"0000:3b:00.0", "0000:3c:00.0"}): 2}, nvml.links_between(found))

    def test_one_that_the_driver_has_and_nobody_lists_is_lost(self):
        found = dict(nvml._gpus(Library(), ("0000:3b:00.0", "0000:af:00.0", "0000:b0:00.0")))
        self.assertEqual({"0000:3c:00.0", "0000:3b:00.0", "0000:af:00.0"}, set(found))
        self.assertEqual(nvmlhealth.State(lost="GPU is lost"), found["0000:af:00.0"].state)

    def test_gpu_that_is_lost_while_its_health_is_read_is_lost(self):
        library = Library()
        library.nvmlDeviceGetRemappedRows = mock.Mock(side_effect=Refused("GPU is lost", 15))
        self.assertEqual(nvmlhealth.State(lost="GPU is lost"),
                         dict(nvml._gpus(library, ("0000:3b:00.0",)))["0000:3b:00.0"].state)

    def test_gpu_without_memory_of_its_own_is_not_lost(self):
        library = Library()
        library.nvmlDeviceGetMemoryInfo = mock.Mock(side_effect=Refused("Not Supported"))
        with mock.patch.object(library, "nvmlDeviceGetMigMode", side_effect=Refused("Not Supported")):
            gpu = dict(nvml._gpus(library, ("0000:3b:00.0",)))["0000:3b:00.0"]
        self.assertEqual(("GPU-2", None, rules.WELL), (gpu.uuid, gpu.memory, nvmlhealth.health(gpu.state)))

    def test_what_it_adds_to_a_scan(self):
        # The library would report this host's hardware, not that of the tree.
        host = shared("mixed")
        live = Host(host.root)
        live.live = True
        with mock.patch.object(nvml, "query", return_value=dict(nvml._gpus(Library()))), \
                mock.patch.object(Host, "node_fault", return_value=None):
            inventory = scan(live)
        gpu, part = inventory.get("0000:3c:00.0"), inventory.get("0000:3c:00.0/gi1/ci0")
        self.assertEqual((40 << 30, scan(host).get(gpu.id).uuid), (gpu.memory, gpu.uuid))
        self.assertEqual(("MIG-(0, 0)", "1g.5gb", 5 << 30), (part.uuid, part.slice.profile, part.memory))
        self.assertIsNone(inventory.get("0000:3c:00.0/gi5/ci0").uuid)

    def test_slice_whose_profile_no_cloud_has_a_name_for_is_refused(self):
        part = Device("0000:3c:00.0/gi1/ci0", "0000:3c:00.0", Kind.GPU_SLICE, "10de", "20b0", "030200", "nvidia",
                      slice=Slice(1, 0))
        facts = mock.Mock(slices={(1, 0): nvml.MigSlice("MIG-1", "1g.24gb+new", 24 << 30, 0)})
        (complaint,) = Nvidia(shared("mixed"))._enriched_slice(part, facts).health
        self.assertIn("its profile 1g.24gb+new has no name in the clouds", complaint)

    def test_a_captured_tree_is_not_mixed_with_this_host(self):
        with mock.patch.object(nvml, "query", side_effect=AssertionError("asked")):
            self.assertTrue(scan(shared("mixed")).get("0000:3b:00.0").healthy)


class Asking(testtools.TestCase):
    def test_without_the_library_there_is_nothing(self):
        with mock.patch.object(nvml, "_LIBRARY", "libno-such-library.so.9"):
            self.assertEqual({}, nvml.query())

    def test_unexpected_failure_is_not_taken_for_health(self):
        with mock.patch.object(nvml, "_ask", side_effect=RuntimeError("odd")), \
                mock.patch.object(threading, "excepthook"), mock.patch.object(nvml, "available", lambda: True), \
                mock.patch.object(nvml, "_bound", lambda: (CUT,)):
            self.assertFalse(nvmlhealth.health(nvml.query()[CUT].state) == rules.WELL)


class Concurrency(testtools.TestCase):
    """pynvml's own code on an emulated library, which several threads ask."""

    def setUp(self):
        super().setUp()
        self.library = self.useFixture(Nvml({CUT: [(1, 0, "1g.5gb", (1,)), (2, 2, "2g.10gb", (2,))]}))
        self.useFixture(fixtures.MonkeyPatch("containerhost.vendors.nvidia.nvml._ASKER", nvml._Asker()))
        self.useFixture(fixtures.MonkeyPatch("containerhost.vendors.nvidia.nvml._bound", lambda: (CUT,)))
        self.reached, self.free = threading.Event(), threading.Event()
        self.addCleanup(self.end)

    def end(self):
        """Let no query go on in the library of another test."""
        self.free.set()
        for thread in threading.enumerate():
            if thread.name == "nvml":
                thread.join(60)

    def hold(self, function):
        """Let the library hang in one of its functions until ``free``."""
        def before(name):
            if name == function:
                self.reached.set()
                self.free.wait(60)
        self.library.before = before

    def asking(self, timeout=30.0):
        found = queue.Queue()
        threading.Thread(target=lambda: found.put(nvml.query(timeout)), daemon=True).start()
        return found

    def test_all_concurrent_callers_get_the_whole_answer(self):
        self.hold("nvmlDeviceGetCount_v2")
        first = self.asking()
        self.assertTrue(self.reached.wait(30))
        answers = [first, *(self.asking() for _ in range(5))]
        self.free.set()
        for answer in answers:
            gpu = answer.get(timeout=60)[CUT]
            self.assertEqual({(1, 0): "1g.5gb", (2, 0): "2g.10gb"},
                             {key: part.profile for key, part in gpu.slices.items()})
        self.assertLessEqual(self.library.calls.count("nvmlDeviceGetCount_v2"), 6)

    def test_caller_never_gets_what_was_read_before_it_asked(self):
        self.hold("nvmlShutdown")  # the first query has read everything
        first = self.asking()
        self.assertTrue(self.reached.wait(30))
        self.library.gpu(CUT).instances.pop()
        changed, waits = nvml._ASKER._changed, threading.Event()
        wait_for = changed.wait_for
        self.useFixture(fixtures.MonkeyPatch("containerhost.vendors.nvidia.nvml._ASKER._changed.wait_for",
                                             lambda *arguments: (waits.set(), wait_for(*arguments))[1]))
        second = self.asking()
        self.assertTrue(waits.wait(30))  # with the lock that the first query needs to end
        self.free.set()
        self.assertEqual(1, len(second.get(timeout=60)[CUT].slices))
        first.get(timeout=60)  # of its own query, or of the next one if that ended before it woke up

    def test_hanging_library_makes_gpus_unknown_and_delays_nobody_twice(self):
        self.hold("nvmlDeviceGetCount_v2")
        (complaint,) = nvmlhealth.health(nvml.query(0.05)[CUT].state).complaints
        self.assertIn("unknown", complaint)
        self.assertIsNotNone(self.asking(timeout=600).get(timeout=60)[CUT].state.unknown)
        self.assertEqual(1, self.library.calls.count("nvmlDeviceGetCount_v2"))
        self.free.set()
        for thread in threading.enumerate():
            if thread.name == "nvml":
                thread.join(30)
        self.assertEqual(2, len(nvml.query(30)[CUT].slices))

    def test_query_waits_for_each_gpu_to_start(self):
        """Without persistence mode each GPU takes seconds in each query."""
        eight = tuple(f"0000:{bus:02x}:00.0" for bus in range(8))
        with mock.patch.object(nvml, "_bound", return_value=eight), \
                mock.patch.object(nvml._Asker, "ask", return_value={}) as ask:
            nvml.query()
        self.assertGreaterEqual(ask.call_args.args[0], 3 * len(eight) + nvml.TIMEOUT)

    def test_failing_library_makes_gpus_unknown(self):
        self.library.failing = {"nvmlDeviceGetCount_v2": 0}
        self.assertIsNotNone(nvml.query()[CUT].state.unknown)

    def test_slice_that_fails_to_answer_does_not_vanish(self):
        self.library.failing = {"nvmlDeviceGetMigDeviceHandleByIndex": 0}
        found = nvml.query()[CUT]
        self.assertTrue(len(found.slices) == 2 or nvmlhealth.health(found.state).complaints)

    def test_gpu_in_mig_mode_is_useless_without_slices(self):
        self.assertEqual((), nvmlhealth.health(nvml.query()[CUT].state).complaints)
        self.library.gpu(CUT).instances.clear()
        (complaint,) = nvmlhealth.health(nvml.query()[CUT].state).complaints
        self.assertIn("MIG mode is on and it has no slices", complaint)
        self.library.gpu(CUT).enabled = False
        self.assertEqual((), nvmlhealth.health(nvml.query()[CUT].state).complaints)

    def test_scan_finds_gpus_unhealthy_while_nothing_is_known(self):
        live = Host(shared("mixed").root)
        live.live = True
        self.useFixture(fixtures.MonkeyPatch("containerhost.vendors.nvidia.nvml._bound", lambda: ("0000:3c:00.0",)))
        self.useFixture(fixtures.MonkeyPatch("containerhost.vendors.nvidia.nvml.TIMEOUT", 0.05))
        self.library.failing = {"nvmlDeviceGetCount_v2": 0}
        with mock.patch.object(Host, "node_fault", return_value=None):
            inventory = scan(live)
        for name in ("0000:3c:00.0", "0000:3c:00.0/gi1/ci0"):
            self.assertFalse(inventory.get(name).healthy, name)


class ResetTest(testtools.TestCase):
    def test_ends_when_the_gpu_has_joined_its_fabric(self):
        answers = [{CUT: nvml.Gpu(None, None, None, {}, state=nvmlhealth.State(fabric=fabric))}
                   for fabric in ("not started", "in progress", None)]
        with mock.patch.object(nvml, "query", side_effect=answers) as query, \
                mock.patch.multiple(reset, _run=mock.DEFAULT, _is_persistent=lambda address: False, POLL_INTERVAL=0), \
                mock.patch.object(reset.shutil, "which"):
            self.assertTrue(reset.reset(CUT))
        self.assertEqual(len(answers), query.call_count)
