# SPDX-License-Identifier: Apache-2.0
"""MIG slices by flavor (``resources:CUSTOM_MIG_…``) through nova's API, Placement included."""

from tests.functional.nova import base  # isort: skip

from typing import Any

from containerhost.allocation.store import AllocationStore, Consumer
from containerhost.inventory.scan import scan
from nova_lxd_ext.hardware.sliceproviders import provider_name, provider_uuid
from tests import levels
from tests.fakehost.control import FakeHostControl
from tests.functional.nvml import Nvml

GPU = "0000:3c:00.0"
SMALL, LARGE = "CUSTOM_MIG_1G_5GB", "CUSTOM_MIG_1C_2G_10GB"
PROFILES = {GPU: {(1, 0): "1g.5gb", (2, 0): "1g.5gb", (5, 0): "1c.2g.10gb", (5, 1): "1c.2g.10gb"}}
FIRST, SECOND = f"{GPU}/gi1/ci0", f"{GPU}/gi2/ci0"


@levels.exhaustive("each server with its slice stays", tests=("test_placement_gives_away_nothing_that_cannot_be_had",))
class SliceFlavorTest(base.LxdServers):
    def setUp(self) -> None:
        self.useFixture(Nvml(PROFILES))
        super().setUp()
        self.control = FakeHostControl.from_environment()

    def sliced(self, expected: str = "ACTIVE", **resources: int) -> dict[str, Any]:
        specs = {f"resources__{name}": str(count) for name, count in resources.items()}
        return self.server(self.flavor(**specs), expected=expected)

    def of(self, server: Any) -> set[str]:
        """Return the slices that the server has, without those that it lost and that are blocked until it stops."""
        records = AllocationStore(self.state / "owners").records().values()
        return {record.device_id for record in records
                if record.consumer.uuid == server["id"] and record.blocked is None}

    def assert_sees_only(self, server: Any, ids: set[str]) -> None:
        inventory = scan()
        expected = {node.path.rpartition("/")[2] for name in ids for node in inventory.get(name).nodes
                    if node.path.startswith("/dev/nvidia-caps/")}
        self.assertEqual(expected, set(self.inside(server, "ls", "/dev/nvidia-caps").output.split()))
        self.assertEqual({"/dev/nvidia1"}, set(self.inside(
            server, "sh", "-c", "ls -d /dev/nvidia[0-9]*").output.split()))

    def inventory(self) -> dict[str, tuple[int, int]]:
        """Resource class -> total and reserved, in Placement."""
        self._run_periodics()
        found = self._get_provider_inventory(provider_uuid(base.HOST, GPU))
        return {name: (entry["total"], entry["reserved"]) for name, entry in found.items()}

    def test_each_server_has_its_slice_until_there_is_none(self) -> None:
        self.assertEqual({SMALL: (2, 0), LARGE: (2, 0)}, self.inventory())
        names = {provider["name"] for provider in self._get_all_providers()}
        self.assertIn(provider_name(base.HOST, GPU), names)
        servers = [self.sliced(**{SMALL: 1}), self.sliced(**{SMALL: 1}), self.sliced(**{LARGE: 2})]
        self.assertEqual([{FIRST}, {SECOND}, {f"{GPU}/gi5/ci0", f"{GPU}/gi5/ci1"}], [self.of(one) for one in servers])
        for server in servers:
            self.assert_sees_only(server, self.of(server))
            used = self._get_allocations_by_server_uuid(server["id"])[provider_uuid(base.HOST, GPU)]["resources"]
            self.assertEqual(len(self.of(server)), sum(used.values()))
        refused = self.sliced(expected="ERROR", **{SMALL: 1})
        self.assertIn("No valid host", self.fault(refused))
        for server in (*servers, refused):
            self._delete_server(server)
        self.assert_nothing_left()

    @levels.exhaustive("slices of a GPU follow the same steps as whole ones")
    def test_a_server_keeps_its_slice(self) -> None:
        """Start and reboot are not told what Placement gave the server; a rebuild is."""
        first = self.sliced(**{SMALL: 1})
        server = self.sliced(**{SMALL: 1})
        self._delete_server(first)  # from here on the first slice is free, too
        for act in (lambda: self._reboot_server(server, hard=True),
                    lambda: (self._stop_server(server), self._start_server(server))):
            self.notifier.reset()
            act()
            self.assertEqual({SECOND}, self.of(server))
            self.assert_sees_only(server, {SECOND})
        self.notifier.reset()
        self._rebuild_server(server, self.image("squashfs"))
        (held,) = self.of(server)
        self.assertIn(held, (FIRST, SECOND))
        self.assert_sees_only(server, {held})
        self._delete_server(server)
        self.assert_nothing_left()

    @levels.exhaustive("slices of a GPU follow the same steps as whole ones")
    def test_without_a_record_placement_is_asked(self) -> None:
        """As after the revert of a migration, which nova begins without telling what Placement gave."""
        server = self.sliced(**{SMALL: 1})
        self._stop_server(server)
        store = AllocationStore(self.state / "owners")
        (record,) = store.records().values()
        store.begin_cleaning(record.device_id)
        store.release(record.device_id, record.consumer)
        self._start_server(server)
        (held,) = self.of(server)
        self.assert_sees_only(server, {held})
        self._delete_server(server)
        self.assert_nothing_left()

    @levels.exhaustive("slices of a GPU follow the same steps as whole ones")
    def test_a_resize_changes_the_slice_for_good_or_not(self) -> None:
        self.flags(allow_resize_to_same_host=True)
        server = self.sliced(**{SMALL: 1})
        larger = self.flavor(**{f"resources__{LARGE}": "1"})
        for settle, expected in ((self.revert, FIRST), (self._confirm_resize, f"{GPU}/gi5/ci0")):
            self.resize(server, larger)
            self.assertEqual({f"{GPU}/gi5/ci0"}, self.of(server))
            self.assert_sees_only(server, {f"{GPU}/gi5/ci0"})
            settle(server)
            self.assertEqual({expected}, self.of(server))
            self.assert_sees_only(server, {expected})
        self._delete_server(server)
        self.assert_nothing_left()

    def test_placement_gives_away_nothing_that_cannot_be_had(self) -> None:
        store, other = AllocationStore(self.state / "owners"), Consumer("lxdone", "lxd", "one-7", "7")
        store.claim([scan().get(FIRST)], other, lambda device: ())
        self.assertEqual({SMALL: (2, 1), LARGE: (2, 0)}, self.inventory())
        server = self.sliced(**{SMALL: 1})
        self.assertEqual({SECOND}, self.of(server))
        refused = self.sliced(expected="ERROR", **{SMALL: 1})
        self.assertIn("No valid host", self.fault(refused))
        self._delete_server(refused)
        self._delete_server(server)
        store.release(FIRST, other)
        self.assertEqual({SMALL: (2, 0), LARGE: (2, 0)}, self.inventory())
        self.assert_nothing_left()
