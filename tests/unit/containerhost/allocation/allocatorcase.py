# SPDX-License-Identifier: Apache-2.0
"""Allocate devices of a described host, with what root would do in memory."""

import atexit
import functools
import pathlib
import shutil
import tempfile

import fixtures
import testtools

from containerhost import errors
from containerhost.allocation.allocator import DeviceAllocator
from containerhost.allocation.refusals import Request
from containerhost.allocation.store import AllocationStore, Consumer
from containerhost.devices.health import kernellog
from containerhost.devices.model import Kind, Role
from containerhost.inventory.scan import HostView, scan
from containerhost.linux.sysfs import Host
from containerhost.privileged import Privileged
from tests.fakehost import description, tree
from tests.unit.containerhost.devices.health.test_kernellog import record


class NoHardware(Privileged):
    """The described devices are not on this machine; were their likes, no test may touch them."""

    def _refuse(self, *arguments):
        raise errors.HostActionFailed("there is no such device here")

    set_vf_link = set_vf_guids = rename_netdev = link_down_and_flush = unbind = bind = reset = reset_gpu = _refuse
    mark_reset = _refuse

    def users(self, nodes):
        return ()

    def thaw_left(self):
        pass


class Willing(NoHardware):
    def reset_gpu(self, vendor, address, others=()):
        return True


class Marking(Willing):
    """Marks resets in the log of the described host.

    :ivar able: whether GPUs can be reset
    :ivar has_client: whether the driver refuses that, because a client has the GPU
    :ivar using: processes in containers that are seen to have it open
    """

    def __init__(self, tree):
        self.log = tree.path("/dev/kmsg")
        self.able = True
        self.has_client = False
        self.using = ()

    def reset_gpu(self, vendor, address, others=()):
        if self.has_client:
            raise errors.ResetRefused("GPU is in use by another client")
        return self.able

    def users(self, nodes):
        return self.using

    def mark_reset(self, address, counters):
        with open(self.log, "ab") as log:
            log.write(record(kernellog.mark(address, counters), facility=1))


class Linked(Willing):
    """:ivar links: what was set for each VF, by its number"""

    def __init__(self):
        self.links = {}

    def set_vf_link(self, netdev, index, state):
        self.links[index] = state


class Limiting(Willing):
    """:ivar rates: what was set, in order
    :ivar refused: the rates that the card refuses
    """

    def __init__(self, *refused):
        self.rates = []
        self.refused = refused

    def set_vf_rate(self, netdev, index, rate):
        self.rates.append(rate)
        if rate in self.refused:
            raise errors.HostActionFailed("Operation not supported")

    def unbind(self, *arguments):
        pass

    bind = reset = link_down_and_flush = unbind


class Binding(Willing):
    """:ivar bound: what was bound, by address; each function's interface is there at once"""

    def __init__(self):
        self.bound = {}

    def bind(self, address, driver):
        self.bound[address] = driver


@functools.cache
def host(name):
    """A described host; no test changes its files."""
    directory = pathlib.Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, directory)
    tree.write(description.load(name), directory)
    return Host(directory)


def consumer(name):
    return Consumer("test", "lxd", name, f"uuid-of-{name}")


class AllocatorTestCase(testtools.TestCase):
    described = "small"

    def setUp(self):
        super().setUp()
        self.host = host(self.described)
        self.store = AllocationStore(pathlib.Path(self.useFixture(fixtures.TempDir()).path) / "owners")
        self.foreign = {}
        self.allocator = DeviceAllocator(self.store, lambda: HostView(self.host), Willing(),
                                     lambda devices: self.foreign, self.host)
        self.gpus = [device for device in scan(self.host).devices if device.kind is Kind.GPU]
        self.vfs = [device for device in scan(self.host).devices if device.role is Role.VF]

    def acquire(self, name, *ids):
        return self.allocator.acquire([Request(device_id) for device_id in ids], consumer(name))
