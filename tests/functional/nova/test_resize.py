"""A server's size changes on its own host, for good or not, and it keeps its files."""

from collections.abc import Mapping
from typing import Any, ClassVar

from containerhost.engines import Status
from tests.functional.nova import base

MIB, GIB = 2**20, 2**30


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

    def test_ephemeral_disks_grow_and_shrink_back(self) -> None:
        """A disk keeps what is on it; one that only the larger flavor has comes and goes with it."""
        with_disk, larger = (self._create_flavor(vcpu=1, memory_mb=96, disk=1, ephemeral=size) for size in (1, 2))
        for flavor, sizes in ((with_disk, [1]), (self.small, [])):
            with self.subTest(sizes):
                server = self.server_with_file(flavor)
                self.disks_are(sizes)
                write = "mkdir -p /ephemeral0; echo mine > /ephemeral0/file"
                self.assertEqual(0, self.inside(server, "sh", "-c", write).status)
                self.resize(server, larger)
                self.disks_are([2])
                self.assertEqual("mine\n" * len(sizes), self.inside(server, "sh", "-c", "cat /ephemeral0/*").output)
                self.revert(server)
                self.disks_are(sizes)
                self.assertEqual("mine\n", self.inside(server, "cat", "/ephemeral0/file").output)
                self._delete_server(server)
                self.assert_nothing_left()

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
