# SPDX-License-Identifier: Apache-2.0
"""A server's size changes on its own host, for good or not, and it keeps its files."""

from collections.abc import Mapping
from typing import Any, ClassVar

from nova import context as nova_context
from nova import objects

from containerhost.engines.contract import Status
from tests import levels
from tests.functional.nova import base

MIB, GIB = 2**20, 2**30


@levels.exhaustive("units and tests/model/nova have it",
                   tests=("test_a_refused_resize_holds_no_devices_of_the_size_that_was_refused",))
class ResizeTest(base.LxdServers):
    options: ClassVar = {(None, "allow_resize_to_same_host"): True}

    def setUp(self) -> None:
        super().setUp()
        self.small = self.flavor(memory_mb=96, disk=1)
        self.with_gpu = self.flavor(memory_mb=96, pci_passthrough__alias=f"{base.GPU_ALIAS}:1")
        self.large = self.flavor(vcpu=2, memory_mb=160, disk=2, pci_passthrough__alias=f"{base.GPU_ALIAS}:1")

    def size(self, server: Mapping[str, Any]) -> tuple[int, int, int]:
        """Memory in MiB, CPUs, root disk in GiB, as the running container has them."""
        found = self.config(server)
        self.assertEqual(Status.RUNNING, self.container(server).status)
        return (int(found["config"]["limits.memory"]) // MIB, int(found["config"]["limits.cpu"]),
                int(found["devices"]["root"]["size"]) // GIB)

    def has_file(self, server: Mapping[str, Any]) -> None:
        self.assertEqual("mine\n", self.inside(server, "cat", "/root/file").output)

    def server_with_file(self, flavor: str) -> dict[str, Any]:
        server = self.server(flavor)
        self.assertEqual(0, self.inside(server, "sh", "-c", "echo mine > /root/file").status)
        return server

    @levels.exhaustive("a resize without the device and back remains, PlacedResizeTest confirms one")
    def test_larger_with_a_device_and_confirmed(self) -> None:
        server = self.server_with_file(self.small)
        self.resize(server, self.large)
        self.assertEqual((160, 2, 2), self.size(server))
        self.has_file(server)
        self.assertEqual([server["id"]], list(self.held().values()))
        self.assertEqual(0, self.inside(server, "sh", "-c", "ls /dev/nvidia[0-9]*").status)
        self._confirm_resize(server)
        self.assertEqual((160, 2, 2), self.size(server))
        self._delete_server(server)
        self.assert_nothing_left()

    def test_other_memory_without_the_device_and_reverted(self) -> None:
        server = self.server_with_file(self.with_gpu)
        held = self.held()
        self.resize(server, self.flavor(memory_mb=160, disk=2))
        self.assertEqual(((160, 1, 2), {}), (self.size(server), self.held()))
        self.assertNotEqual(0, self.inside(server, "sh", "-c", "ls /dev/nvidia[0-9]*").status)
        self.revert(server)
        self.assertEqual(((96, 1, 1), held), (self.size(server), self.held()))
        self.assertEqual(0, self.inside(server, "sh", "-c", "ls /dev/nvidia[0-9]*").status)
        self.has_file(server)
        self._delete_server(server)
        self.assert_nothing_left()

    @levels.exhaustive("EphemeralsTest has such a disk; units let it grow and shrink back")
    def test_ephemeral_disks(self) -> None:
        """A disk requested at boot keeps its size; one of the flavor is removed with the flavor."""
        without, *flavors = (self._create_flavor(vcpu=1, memory_mb=96, disk=1, ephemeral=size) for size in (0, 1, 2))
        for first, there, then in ((flavors[0], [1], [1]), (without, [], [2])):
            with self.subTest(there):
                server = self.server_with_file(first)
                self.disks_are(there)
                self.write_to_disk(server, "mine")
                self.resize(server, flavors[1])
                self.disks_are(then)
                self.assertEqual("mine\n" * len(there), self.inside(
                    server, "sh", "-c", "cat /ephemeral0/* 2> /dev/null").output)
                self.revert(server)
                self.disks_are(there)
                self.assertEqual("mine\n", self.inside(server, "cat", "/ephemeral0/file").output)
                self._delete_server(server)
                self.assert_nothing_left()

    @levels.exhaustive("EphemeralsTest has such a disk; units let it grow and shrink back")
    def test_an_ephemeral_disk_of_a_flavor_grows_and_shrinks_back(self) -> None:
        server = self.server_with_file(self.small)
        for size in (1, 2):
            self.resize(server, self._create_flavor(vcpu=1, memory_mb=96, disk=1, ephemeral=size))
            self.disks_are([size])
            if size == 1:
                self.write_to_disk(server, "mine")
                self._confirm_resize(server)
        self.revert(server)
        self.disks_are([1])
        self.assertEqual("mine\n", self.inside(server, "cat", "/ephemeral0/file").output)
        self._delete_server(server)
        self.assert_nothing_left()

    def write_to_disk(self, server: Mapping[str, Any], text: str) -> None:
        done = self.inside(server, "sh", "-c", f"mkdir -p /ephemeral0; echo {text} > /ephemeral0/file")
        self.assertEqual(0, done.status, done.output)

    def disks_are(self, sizes: list[int]) -> None:
        """:param sizes: of the ephemeral disks, in GiB"""
        self.assertEqual(sizes, [disk.size // GIB for disk in self.lxd.disks.all()])

    def test_what_cannot_be_is_refused_and_the_server_goes_on(self) -> None:
        specs = {"pci_passthrough:alias": f"{base.GPU_ALIAS}:1"}
        server = self.server_with_file(self._create_flavor(vcpu=1, memory_mb=96, disk=1, ephemeral=2, extra_spec=specs))
        held, pid = self.held(), self.lxd.engine.metrics(self.container(server).name).pid
        flavor = self._create_flavor(vcpu=1, memory_mb=96, disk=1, ephemeral=1)
        self.api.post_server_action(server["id"], {"resize": {"flavorRef": flavor}})
        self._wait_for_migration_status(server, ["error"])
        server = self._wait_for_server_parameter(server, {"status": "ACTIVE", "OS-EXT-STS:task_state": None})
        self.assert_told("2 GiB of ephemeral disks", "resize", server)
        self.assertEqual(pid, self.lxd.engine.metrics(self.container(server).name).pid, "it was stopped")
        self.assertEqual(((96, 1, 1), held), (self.size(server), self.held()))

    def test_a_refused_resize_holds_no_devices_of_the_size_that_was_refused(self) -> None:
        one = {"pci_passthrough:alias": f"{base.GPU_ALIAS}:1"}
        more = {"pci_passthrough:alias": f"{base.GPU_ALIAS}:1,{base.VF_ALIAS}:1"}
        server = self.server_with_file(self._create_flavor(vcpu=1, memory_mb=96, disk=1, ephemeral=2, extra_spec=one))
        flavor = self._create_flavor(vcpu=1, memory_mb=96, disk=1, ephemeral=1, extra_spec=more)
        self.api.post_server_action(server["id"], {"resize": {"flavorRef": flavor}})
        self._wait_for_migration_status(server, ["error"])
        self._wait_for_server_parameter(server, {"status": "ACTIVE", "OS-EXT-STS:task_state": None})
        self.computes[base.HOST].manager.update_available_resource(nova_context.get_admin_context())
        devices = objects.PciDeviceList.get_by_instance_uuid(nova_context.get_admin_context(), server["id"])
        self.assertEqual(set(self.held()), {device.address for device in devices})
        self._delete_server(server)
        self.assert_nothing_left()
