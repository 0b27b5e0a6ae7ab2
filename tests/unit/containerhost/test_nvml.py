import sys
import threading
import time
import types
from pathlib import Path
from unittest import mock

import fixtures
import testtools

from containerhost.devices import nvml, vendors
from containerhost.devices.health import gpus
from containerhost.devices.scan import scan
from containerhost.sysfs import Host
from tests.unit.containerhost.hosts import shared


class Refused(Exception):
    def __init__(self, words, value=3):
        super().__init__(words)
        self.value = value


class Library:
    """NVML of a host with a MIG GPU, one without MIG, and one that has died."""

    NVMLError = Refused
    NVML_DEVICE_MIG_ENABLE = 1
    NVML_ERROR_NO_PERMISSION = 4

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
                                  gpus.State()), found["0000:3b:00.0"])
        self.assertEqual(nvml.Use(None, None, 1 << 30, 250.6), found["0000:3c:00.0"].use)
        self.assertEqual(nvml.MigSlice("MIG-(0, 1)", "1g.5gb", 5 << 30), found["0000:3c:00.0"].slices[2, 0])

    def test_one_that_the_driver_has_and_nobody_lists_is_lost(self):
        found = dict(nvml._gpus(Library(), ("0000:3b:00.0", "0000:af:00.0", "0000:b0:00.0")))
        self.assertEqual({"0000:3c:00.0", "0000:3b:00.0", "0000:af:00.0"}, set(found))
        self.assertEqual(gpus.State(lost="GPU is lost"), found["0000:af:00.0"].state)

    def test_what_it_adds_to_a_scan(self):
        # Only this host's own library could tell, and it would tell of other hardware than the tree's.
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

    def test_a_captured_tree_is_not_mixed_with_this_host(self):
        with mock.patch.object(nvml, "query", side_effect=AssertionError("asked")):
            self.assertTrue(scan(shared("mixed")).get("0000:3b:00.0").healthy)


class Asking(testtools.TestCase):
    def test_without_the_library_there_is_nothing(self):
        with mock.patch.object(nvml, "_LIBRARY", "libno-such-library.so.9"):
            self.assertEqual({}, nvml.query())

    def test_a_call_that_never_returns_is_left_behind_and_not_joined(self):
        forever, calls = threading.Event(), []
        self.addCleanup(forever.set)
        with mock.patch.object(nvml, "_ask", lambda answer: (calls.append(1), forever.wait(60))):
            asker = nvml._Asker()
            begin = time.monotonic()
            self.assertEqual({}, asker.ask(0.05))
            self.assertEqual({}, asker.ask(30))
        self.assertLess(time.monotonic() - begin, 10)
        self.assertEqual([1], calls)


class Loading(testtools.TestCase):
    def test_plug_ins_of_other_packages(self):
        def point(name, load):
            return types.SimpleNamespace(name=name, value=f"package:{name}", load=load)

        other = type("Other", (vendors.Intel,), {"name": "other"})
        points = [point("other", lambda: other), point("nvidia", lambda: None), point("bad", lambda: 1 // 0)]
        self.names("[containerhost.vendors]\nother = package:Other\n")
        with mock.patch("importlib.metadata.entry_points", return_value=points):
            self.assertEqual((*vendors.OWN, other), vendors.load())

    def test_what_names_none_is_not_loaded(self):
        self.names("[console_scripts]\nother = x:y\n\n[containerhost.vendors]\nnvidia = a:b\n# c = d\n[z]\nother = e\n")
        with mock.patch("importlib.metadata.entry_points", side_effect=AssertionError):
            self.assertEqual(vendors.OWN, vendors.load())

    def names(self, text):
        """Entry points of an installed package."""
        folder = Path(self.useFixture(fixtures.TempDir()).path)
        (folder / "other-1.dist-info").mkdir()
        (folder / "other-1.dist-info/entry_points.txt").write_text(text)
        self.useFixture(fixtures.MockPatchObject(vendors.sys, "path", [str(folder), *sys.path]))
        vendors.load.cache_clear()
        self.addCleanup(vendors.load.cache_clear)
