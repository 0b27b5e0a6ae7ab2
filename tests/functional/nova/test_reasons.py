# SPDX-License-Identifier: Apache-2.0
"""A server that no host boots says in its fault why the last one refused it."""

from tests.functional.nova import twohosts  # isort: skip (decides how nova runs)

from typing import Any, ClassVar

from nova import context as nova_context
from nova import objects

from containerhost.allocation.store import AllocationStore, Consumer
from containerhost.devices.model import Kind
from tests import levels
from tests.functional.nova import base
from tests.functional.nova.twohosts import FIRST, SECOND


class Losers(base.LxdServers):
    """The scheduler looks at nothing but Placement, as if another one had just given away what it saw free."""

    def _configure(self) -> None:
        super()._configure()
        self.flags(enabled_filters=["ComputeFilter"], group="filter_scheduler")
        self.gpus = [device for device in self.devices_before if device.kind is Kind.GPU]

    def with_gpu(self, expected: str = "ACTIVE", **request: Any) -> dict[str, Any]:
        return self.server(self.flavor(memory_mb=96, pci_passthrough__alias=f"{base.GPU_ALIAS}:1"), expected=expected,
                           **request)

    def assert_refused(self, *words: str) -> None:
        server = self.with_gpu(expected="ERROR")
        for expected in words:
            self.assertIn(expected, self.fault(server))
        self.assertEqual({}, self._get_allocations_by_server_uuid(server["id"]))
        self._delete_server(server)

    def assert_gone(self, servers: list[dict[str, Any]]) -> None:
        for server in servers:
            self._delete_server(server)
        self.assert_nothing_left()


class OneHostTest(Losers):
    @levels.exhaustive("ResizeTest has the reason of a refused resize, DeviceFaultTest the race for the last GPU")
    def test_the_loser_of_a_race_for_the_last_gpu_is_told_so(self) -> None:
        servers = [self.with_gpu() for _ in self.gpus]
        self.assert_refused("Claim pci failed")
        self.assert_gone(servers)

    @levels.exhaustive("ResizeTest has the reason of a refused resize, DeviceFaultTest the race for the last GPU")
    def test_a_resize_whose_claim_fails_says_why_in_fault_and_event(self) -> None:
        self.flags(allow_resize_to_same_host=True)
        servers = [self.with_gpu() for _ in self.gpus]
        server = self.server(self.flavor(memory_mb=96))
        flavor = self.flavor(memory_mb=96, pci_passthrough__alias=f"{base.GPU_ALIAS}:1")
        self.api.post_server_action(server["id"], {"resize": {"flavorRef": flavor}})
        self._wait_for_migration_status(server, ["error"])
        server = self._wait_for_state_change(server, "ERROR")  # nova's word for it; the server runs
        self.assertIn("Claim pci failed", self.fault(server))
        self.assert_told("Claim pci failed", "resize", server)
        self.assert_gone([*servers, server])


class TwoHostsTest(Losers, twohosts.TwoHosts):
    options: ClassVar = {**twohosts.TwoHosts.options}

    def held_by_another_program(self, host: str) -> None:
        gpu = next(gpu for gpu in self.gpus if gpu.address == twohosts.HALVES[host][0])
        self.store_of(host).claim([gpu], self.stranger(host), lambda device: ())

    def store_of(self, host: str) -> AllocationStore:
        return AllocationStore(self.owners(host))

    def stranger(self, host: str) -> Consumer:
        return Consumer("lxdone", "lxd", f"one-{host}", "7")

    @levels.exhaustive("unit/nova has the reasons, test_placed_devices two hosts")
    def test_refused_by_one_host_it_runs_on_the_other(self) -> None:
        for refusing, other in ((FIRST, SECOND), (SECOND, FIRST)):
            with self.subTest(refusing):
                self.held_by_another_program(refusing)
                server = self.with_gpu()
                self.assertEqual(other, self.host_of(server))
                self._delete_server(server)
                self.store_of(refusing).release(twohosts.HALVES[refusing][0], self.stranger(refusing))

    @levels.exhaustive("the other test is refused by a host, too, and TroubleTest reads the reason")
    def test_refused_by_both_the_fault_is_the_last_ones_reason(self) -> None:
        for host in (FIRST, SECOND):
            self.held_by_another_program(host)
        server = self.with_gpu(expected="ERROR")
        self.assertIn("one-lxd-", self.fault(server))
        self.assertEqual(2, len(self.reasons(server)))
        faults = objects.InstanceFaultList.get_by_instance_uuids(nova_context.get_admin_context(), [server["id"]])
        self.assertIn(self.fault(server), {fault.message for fault in faults})
        self._delete_server(server)
