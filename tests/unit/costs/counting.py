# SPDX-License-Identifier: Apache-2.0
"""Count what an operation asks, and compare that with the limits of all operations.

A container has a GPU and an InfiniBand virtual function, unless the operation says otherwise. The host is an emulated
one. Of the engine, which is emulated too, calls are counted: each stands for one request or a few.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import fixtures
import testtools

from containerhost.allocation.store import AllocationStore
from containerhost.devices import pci
from containerhost.linux.sysfs import Host
from containerhost.vendors.nvidia import nvml
from containerhost.vendors.nvidia.vendor import Nvidia
from tests.unit.nova import fakes

GPU_0, GPU_1 = fakes.GPU_0, fakes.GPU_1
VF_0, VF_1 = "0000:5e:00.1", "0000:5e:00.2"


class Cost(NamedTuple):
    """:ivar scans: of all devices of the host
    :ivar devices: read alone, below a device's lock or after a change
    :ivar vendors: queries of NVML; this host's NVIDIA driver would be asked wherever one is counted
    :ivar records: reads of all allocation records
    :ivar engine: calls of the engine
    """

    scans: int
    devices: int
    vendors: int
    records: int
    engine: int


LIMITS = {
    "nova: boot": Cost(1, 3, 2, 5, 5),
    "nova: delete": Cost(1, 2, 2, 3, 3),
    "nova: boot with a direct port, too": Cost(1, 5, 2, 9, 6),
    "nova: get_available_resource": Cost(1, 0, 1, 1, 1),
    "nova: update_provider_tree": Cost(1, 0, 1, 1, 0),
    "nova: get_diagnostics": Cost(1, 0, 1, 1, 0),
    "nova: attach a direct port": Cost(1, 2, 1, 4, 3),
    "nova: detach a direct port": Cost(1, 2, 1, 3, 2),
    "nova: live resize": Cost(1, 7, 4, 14, 6),
    "nova: live resize, finished": Cost(1, 0, 1, 3, 5),
    "nova: live resize, reverted": Cost(1, 7, 4, 14, 8),
    "nova: pause": Cost(1, 0, 1, 1, 2),
    "nova: unpause": Cost(1, 0, 1, 1, 2),
    "nova: power off": Cost(0, 0, 0, 1, 2),
    "nova: power on": Cost(1, 2, 2, 5, 6),
    "nova: hard reboot": Cost(1, 2, 2, 7, 8),
    "nova: resize while off": Cost(1, 4, 3, 4, 3),
    "nova: resize while off, finished": Cost(1, 3, 2, 6, 6),
    "nova: boot without devices": Cost(0, 0, 0, 0, 3),
    "nova: delete without devices": Cost(0, 0, 0, 1, 3),
    "exporter: scrape": Cost(1, 0, 2, 1, 0),
    "exporter: topology": Cost(1, 0, 1, 1, 0),
    "lxdone: deploy": Cost(1, 3, 2, 4, 7),
    "lxdone: attach_nic": Cost(1, 2, 1, 7, 9),
    "lxdone: detach_nic": Cost(1, 2, 1, 6, 8),
    "lxdone: reset": Cost(1, 2, 2, 6, 9),
    "lxdone: cancel": Cost(1, 2, 2, 3, 4),
    "lxdone: host_system": Cost(1, 0, 1, 1, 2),
    "lxdone: host_monitor": Cost(0, 0, 0, 0, 0),
    "lxdone: vm_status": Cost(0, 0, 0, 0, 1),
    "lxdone: vm_monitor": Cost(1, 0, 2, 1, 2),
    "lxdone: deploy without devices": Cost(0, 0, 0, 0, 5),
    "lxdone: cancel without devices": Cost(0, 0, 0, 1, 4),
    "onedock: deploy": Cost(1, 3, 2, 4, 11),
    "onedock: attach_nic": Cost(1, 2, 1, 7, 9),
    "onedock: detach_nic": Cost(1, 2, 1, 6, 8),
    "onedock: reset": Cost(1, 2, 2, 6, 12),
    "onedock: cancel": Cost(1, 2, 2, 3, 6),
    "onedock: host_system": Cost(1, 0, 1, 1, 2),
    "onedock: host_monitor": Cost(0, 0, 0, 0, 0),
    "onedock: vm_status": Cost(0, 0, 0, 0, 1),
    "onedock: vm_monitor": Cost(1, 0, 2, 1, 1),
    "onedock: deploy without devices": Cost(0, 0, 0, 0, 8),
    "onedock: cancel without devices": Cost(0, 0, 0, 1, 6),
}


class Hardware(fakes.NoPrivileges):
    """Root's part, as far as it shows: GUIDs that a virtual function is given."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def set_vf_guids(self, netdev: str, index: int, node_guid: str, port_guid: str) -> None:
        function = Path(self._host.root, "sys/class/net", netdev).resolve().parents[1]
        (ibdev,) = (function / f"virtfn{index}/infiniband").iterdir()
        (ibdev / "node_guid").write_text(f"{node_guid}\n")
        (ibdev / "ports/1/gids/0").write_text(f"fe80:0000:0000:0000:{port_guid}\n")

    def _nothing(self, *arguments: Any) -> None:
        """Nothing of it shows."""

    unbind = bind = rename_netdev = link_down_and_flush = mark_reset = thaw_left = reset = _nothing


class CostCase(testtools.TestCase):
    """:ivar engine: whose calls are counted; made by the test, after this class was set up"""

    engine: fakes.FakeEngine

    def setUp(self) -> None:
        super().setUp()
        self.scans = self.counted(pci, "functions")
        self.devices = self.counted(pci, "function")
        self.vendors = self.counted(nvml, "query", lambda: {})
        self.records = self.counted(AllocationStore, "_read")
        self.questions = [self.counted(fakes.FakeEngine, name) for name in ("held", "pid")]
        # A tree of files is not a live host, so the plug-in does not query NVML.
        asked = functools.cached_property(lambda plugin: nvml.query())
        asked.__set_name__(Nvidia, "_nvml")
        self.useFixture(fixtures.MonkeyPatch("containerhost.vendors.nvidia.vendor.Nvidia._nvml", asked))
        self.useFixture(fixtures.MonkeyPatch("containerhost.allocation.netfunction.NetFunction.port",
                                             lambda function: {"link": "auto"}))

    def counted(self, owner: Any, name: str, act: Callable[..., Any] | None = None) -> mock.Mock:
        return self.useFixture(fixtures.MockPatchObject(
            owner, name, autospec=True, side_effect=act or getattr(owner, name))).mock

    def cost(self) -> Cost:
        engine = len(self.engine.asked) + sum(question.call_count for question in self.questions)
        return Cost(*(counter.call_count for counter in (self.scans, self.devices, self.vendors, self.records)), engine)

    @contextlib.contextmanager
    def costing(self, operation: str) -> Iterator[None]:
        """Enclose the operation, whose cost must be that of the table."""
        before = self.cost()
        yield
        found = Cost(*(now - then for now, then in zip(self.cost(), before, strict=True)))
        self.assertEqual(LIMITS[operation], found, operation)
