# SPDX-License-Identifier: Apache-2.0
"""Test faults between nova's claim and a running container, each caused for real."""

import threading
from collections.abc import Callable
from typing import Any, ClassVar

import fixtures
from nova.tests.functional.api import client

from containerhost.devices.model import Device, Kind
from containerhost.engines.spec import ContainerSpec, Cpu, Memory, RootDisk
from containerhost.inventory.scan import scan
from nova_lxd_ext.image.images import Cache
from tests import levels
from tests.fakehost.control import FakeHostControl
from tests.functional.lxd import POOL
from tests.functional.nova import base
from tests.functional.nova.interrupting import Interrupted

MIB = 2**20


@levels.exhaustive("many boots that race stay; units take a GPU away at each step",
                   tests=("test_gpu_that_falls_off_the_bus_after_the_claim",))
class DeviceFaultTest(base.LxdServers):
    """Nova has claimed a device, and when the driver comes to it, something is wrong with it.

    Nova then tries other hosts, of which there are none, and reports that to the tenant; what this host met
    is in an event.
    """

    def setUp(self) -> None:
        super().setUp()
        self.fakehost = FakeHostControl.from_environment()

    def gpus(self) -> tuple[Device, ...]:
        return tuple(device for device in scan().devices if device.kind is Kind.GPU)

    def vfs(self) -> tuple[Device, ...]:
        return tuple(device for device in scan().devices if self._is_ib_vf(device))

    def device_flavor(self, alias: str) -> str:
        return self.flavor(pci_passthrough__alias=f"{alias}:1")

    def after_claim(self, change: Callable[[], Any]) -> None:
        """Make ``change`` once, while the first boot waits for its image."""
        changes = [change]
        original = Cache.ensure

        def ensure(*args: Any, **kwargs: Any) -> str:
            if changes:
                changes.pop()()
            return original(*args, **kwargs)
        self.useFixture(fixtures.MonkeyPatch("nova_lxd_ext.image.images.Cache.ensure", ensure))

    def refused(self, alias: str, word: str) -> None:
        """A server of that alias ends in ERROR with words about why, and leaves nothing when deleted."""
        server = self.server(self.device_flavor(alias), expected="ERROR")
        self.assertIn(word, self.reasons(server)[0])
        self._delete_server(server)
        self.assertEqual({}, self.held())

    def still_usable(self, alias: str) -> None:
        """The fault over, a server gets such a device again, and returns it."""
        for compute in self.computes.values():
            compute.manager.update_available_resource(base.nova_context.get_admin_context())
        server = self.server(self.device_flavor(alias))
        self._delete_server(server)
        self.assert_nothing_left()

    def each(self, devices: tuple[Device, ...], act: Callable[[str], Any]) -> Callable[[], None]:
        def change() -> None:
            for device in devices:
                act(device.address)
        return change

    @levels.exhaustive("a GPU that falls off the bus remains; FlavorTest has the alias")
    def test_unknown_alias(self) -> None:
        error = self.assertRaises(client.OpenStackApiException, self.server, self.device_flavor("no-such-alias"))
        self.assertEqual(400, error.response.status_code)
        self.assertIn("no-such-alias", str(error))
        self.assert_nothing_left()

    @levels.exhaustive("the boot is undone in the same way after each of these; two of them remain")
    def test_gpu_in_the_configuration_of_a_foreign_container(self) -> None:
        self.lxd.engine.create(ContainerSpec("mine", self.lxd.imported(), Cpu(1), Memory(64 * MIB), RootDisk(POOL)))
        self.lxd.engine.client.patch_instance("mine", {"devices": {
            f"gpu{place}": {"type": "gpu", "pci": gpu.address} for place, gpu in enumerate(self.gpus())}})
        self.refused(base.GPU_ALIAS, "mine")
        self.lxd.engine.delete("mine")
        self.still_usable(base.GPU_ALIAS)

    def trouble(self, alias: str, devices: tuple[Device, ...], cause: Callable[[str], Any],
                repair: Callable[[str], Any], word: str) -> None:
        """The fault befalls ``devices`` after the claim: the boot is refused; repaired, they are handed out again."""
        self.after_claim(self.each(devices, cause))
        try:
            self.refused(alias, word)
        finally:
            self.each(devices, repair)()
        self.still_usable(alias)

    @levels.exhaustive("the boot is undone in the same way after each of these; two of them remain")
    def test_gpu_that_vanishes_after_the_claim(self) -> None:
        gpus = self.gpus()
        self.trouble(base.GPU_ALIAS, gpus, self.fakehost.remove, self.fakehost.restore, gpus[0].address)

    def test_gpu_that_falls_off_the_bus_after_the_claim(self) -> None:
        self.trouble(base.GPU_ALIAS, self.gpus(), self.fakehost.set_fallen,
                     lambda address: self.fakehost.set_fallen(address, False), "fallen off the bus")

    @levels.exhaustive("the boot is undone in the same way after each of these; two of them remain")
    def test_gpu_whose_nodes_are_gone(self) -> None:
        self.trouble(base.GPU_ALIAS, self.gpus(), lambda address: self.fakehost.set_nodes(address, False),
                     lambda address: self.fakehost.set_nodes(address, True), "/dev/")

    @levels.exhaustive("the boot is undone in the same way after each of these; two of them remain")
    def test_vf_without_a_driver(self) -> None:
        self.trouble(base.VF_ALIAS, self.vfs(), self.fakehost.unbind, self.fakehost.bind, "no driver")

    @levels.exhaustive("a GPU that falls off the bus remains; FlavorTest has the alias")
    def test_vf_whose_interface_is_in_another_namespace(self) -> None:
        self.trouble(base.VF_ALIAS, self.vfs(), self.fakehost.move_abroad, self.fakehost.bring_home,
                     "network namespace")

    def test_many_boots_race_for_few_devices(self) -> None:
        """As many servers as there are GPUs run, the others fail, no GPU is in two of them."""
        flavor, image, gpus = self.device_flavor(base.GPU_ALIAS), self.image(), self.gpus()
        bodies = [self._build_server(image_uuid=image, flavor_id=flavor, networks="none") for _ in range(len(gpus) + 2)]
        servers = [self.api.post_server({"server": body}) for body in bodies]
        servers = [self.settled(server) for server in servers]
        running = [server for server in servers if server["status"] == "ACTIVE"]
        self.assertEqual(len(gpus), len(running))
        self.assertEqual({gpu.id for gpu in gpus}, set(self.held()))
        self.assertEqual({server["id"] for server in running}, set(self.held().values()))
        for server in servers:
            self._delete_server(server)
        self.assert_nothing_left()

    def settled(self, server: dict[str, Any]) -> dict[str, Any]:
        def check() -> None:
            self.assertIn(self.api.get_server(server["id"])["status"], ("ACTIVE", "ERROR"))
        self._wait_for_assert(check, max_retries=60)
        return self.api.get_server(server["id"])


class EngineFaultTest(Interrupted):
    """The daemon goes away or stalls in the middle of a boot."""

    options: ClassVar = {("lxd", "ready_timeout"): 30}

    def setUp(self) -> None:
        super().setUp()
        self.flavor_id = self.flavor(pci_passthrough__alias=f"{base.GPU_ALIAS}:1,{base.VF_ALIAS}:1")

    def restart(self) -> None:
        self.lxd.daemon.kill()
        threading.Timer(2, self.lxd.daemon.start).start()

    def test_daemon_restarts_in_the_middle_of_a_boot(self) -> None:
        moments = ("create container", "start container")
        for asked in levels.budget(gate=(levels.turn(moments),), exhaustive=moments):
            with self.subTest(asked):
                self.at(asked, self.restart)
                server = self.server(self.flavor_id, expected="ERROR")
                self._delete_server(server)
                self.assert_nothing_left()
        server = self.server(self.flavor_id)
        self._delete_server(server)
        self.assert_nothing_left()

    @levels.exhaustive("a restart of the daemon remains; units have every error of it")
    def test_daemon_that_stalls(self) -> None:
        """The boot ends in time, and once the daemon is well again nothing of the server stays."""
        self.driver._backend.engine.client.settings.__dict__.update(request_timeout=1, operation_timeout=1)
        self.at("create container", self.stall)
        server = self.server(self.flavor_id, expected="ERROR")
        self._delete_server(server)
        self.assert_nothing_left()

    def stall(self) -> None:
        self.lxd.daemon.pause(True)
        threading.Timer(4, self.lxd.daemon.pause, [False]).start()
