# SPDX-License-Identifier: Apache-2.0
"""GPUs that containers share: what the file may say, and what the host then has."""

from pathlib import Path

import fixtures
import testtools

from containerhost.allocation.refusals import require_distinct
from containerhost.allocation.store import AllocationStore, Consumer, excludes
from containerhost.devices.grants import GrantOptions
from containerhost.devices.model import Kind, NodeUse
from containerhost.engines.lxd import config
from containerhost.engines.lxd.held import held
from containerhost.errors import DeviceHeld, SpecError
from containerhost.inventory import sharing
from containerhost.inventory.scan import Inventory, scan
from containerhost.linux.sysfs import Host
from tests.fakehost import description, tree

WHOLE, CUT, AMD, NIC = "0000:3b:00.0", "0000:3c:00.0", "0000:83:00.0", "0000:5e:00.0"


class PlacesTest(testtools.TestCase):
    def test_numbers(self) -> None:
        for value in ({"containers": "4"}, {"containers": "4", "method": "time-slicing"}):
            self.assertEqual({WHOLE: 4}, sharing.shares({WHOLE: value}))

    def test_what_is_refused(self) -> None:
        for value, words in (({"containers": "1"}, "2 to 64"), ({"containers": "65"}, "2 to 64"),
                             ({"containers": "many"}, "2 to 64"), ({"containers": ["4"]}, "2 to 64"),
                             ("4", "must be {containers: NUMBER}"), ({"containrs": "4"}, "must be {containers"),
                             ({"containers": "4", "memory": "5"}, "must be {containers"),
                             ({"containers": "4", "method": "mps"}, "MPS is not offered"),
                             ({"containers": "4", "method": "luck"}, "must be time-slicing")):
            with self.subTest(value):
                self.assertIn(words, str(self.assertRaises(SpecError, sharing.shares, {WHOLE: value})))


class SharedHostTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.root = Path(self.useFixture(fixtures.TempDir()).path)
        tree.write(description.load("mixed"), self.root)

    def shared(self, text: str | None) -> Inventory:
        file = self.root / sharing.FILE.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.unlink(missing_ok=True)
        if text is not None:
            file.write_text(text)
        return scan(Host(self.root))

    def test_off_by_default(self) -> None:
        for text in (None, "", "# nothing"):
            self.assertEqual([], [one for one in self.shared(text).devices if one.kind is Kind.GPU_SHARE])

    def test_places(self) -> None:
        before = self.shared(None).get(WHOLE)
        inventory = self.shared(f"{WHOLE}: {{containers: 3}}\n{AMD}: {{containers: 2}}\n")
        places = [f"{WHOLE}/share{number}" for number in range(3)]
        self.assertEqual(before, inventory.get(WHOLE))
        self.assertEqual([WHOLE, *places], [device.id for device in inventory.by_address(WHOLE)])
        one = inventory.get(places[1])
        self.assertEqual((before.uuid, before.numa_node, WHOLE), (one.uuid, one.numa_node, one.parent))
        self.assertEqual([node.path for node in before.nodes], [node.path for node in one.nodes])
        self.assertEqual({NodeUse.SHARED}, {node.use for node in one.nodes})
        self.assertEqual([WHOLE], [other.id for other in inventory.related(one)])
        self.assertEqual(places, [other.id for other in inventory.related(inventory.get(WHOLE))])
        self.assertEqual(2, len(inventory.by_address(AMD)) - 1)

    def test_what_cannot_be_shared(self) -> None:
        inventory = self.shared("".join(f"{address}: {{containers: 3}}\n" for address in (CUT, NIC, "0000:77:00.0")))
        self.assertIn("cut into slices", "; ".join(inventory.get(CUT).health))
        self.assertEqual([], [device for device in inventory.devices if device.kind is Kind.GPU_SHARE])
        self.assertTrue(inventory.get(f"{CUT}/gi1/ci0").healthy)
        found = sharing.unknown_gpus(sharing.read(Host(self.root)), inventory.devices)
        self.assertEqual([True, True], [NIC in found[0], "0000:77:00.0" in found[1]])

    def test_a_file_that_is_not_understood_gives_no_gpu_away(self) -> None:
        for text in ("[", f"{WHOLE}: {{containers: 0}}", f"{WHOLE}: {{containers: 4, method: mps}}"):
            inventory = self.shared(text)
            gpus = [device for device in inventory.devices if device.kind is not Kind.NET]
            self.assertEqual({False}, {device.healthy for device in gpus})
            self.assertIn("sharing.yaml" if text == "[" else WHOLE, gpus[0].health[-1])
            self.assertTrue(any(device.healthy for device in inventory.devices if device.kind is Kind.NET))

    def test_whole_and_shared_exclude_each_other_even_when_the_file_changes(self) -> None:
        store = AllocationStore(self.root / "owners")
        first, second, third = (Consumer("nova", "lxd", name, name) for name in ("c1", "c2", "c3"))
        inventory = self.shared(f"{WHOLE}: {{containers: 2}}")
        for number, consumer in enumerate((first, second)):
            store.claim([inventory.get(f"{WHOLE}/share{number}")], consumer, inventory.related)
        self.assertRaises(DeviceHeld, store.claim, [inventory.get(WHOLE)], third, inventory.related)
        inventory = self.shared(None)
        error = self.assertRaises(DeviceHeld, store.claim, [inventory.get(WHOLE)], third, inventory.related)
        self.assertIn("c1", str(error))
        for number, consumer in enumerate((first, second)):
            store.release(f"{WHOLE}/share{number}", consumer)
        store.claim([inventory.get(WHOLE)], third, inventory.related)
        inventory = self.shared(f"{WHOLE}: {{containers: 2}}")
        self.assertRaises(DeviceHeld, store.claim, [inventory.get(f"{WHOLE}/share0")], first, inventory.related)

    def test_ids_that_exclude_each_other(self) -> None:
        for one, other, expected in ((WHOLE, f"{WHOLE}/share0", True), (f"{WHOLE}/share0", WHOLE, True),
                                     (f"{WHOLE}/share0", f"{WHOLE}/share11", False), (WHOLE, WHOLE, False),
                                     (f"{WHOLE}/gi1/ci0", f"{WHOLE}/gi2/ci0", False), (WHOLE, f"{CUT}/share0", False),
                                     (f"{WHOLE}/gi1/ci0", f"{WHOLE}/share1", True), (WHOLE, f"{WHOLE}/gi1/ci0", True)):
            self.assertEqual(expected, excludes(one, other), (one, other))

    def test_one_container_has_one_place_on_a_gpu(self) -> None:
        inventory = self.shared(f"{WHOLE}: {{containers: 2}}\n{AMD}: {{containers: 2}}\n")
        one, two, other = (inventory.get(name) for name in (f"{WHOLE}/share0", f"{WHOLE}/share1", f"{AMD}/share0"))
        require_distinct([(one, GrantOptions()), (other, GrantOptions())], [one.id])
        for wanted, mine in (([one, two], []), ([two], [one.id])):
            error = self.assertRaises(SpecError, require_distinct, [(each, GrantOptions()) for each in wanted], mine)
            self.assertIn("two shares of GPU", str(error))

    def test_lxd_tells_who_has_which_place(self) -> None:
        inventory = self.shared(f"{WHOLE}: {{containers: 2}}")
        one, two = (inventory.get(f"{WHOLE}/share{number}") for number in range(2))
        entry = {"type": "gpu", "gputype": "physical", "pci": WHOLE}

        def instance(name: str, part: str) -> dict[str, object]:
            return {"name": name, "project": "default", "config": {}, "expanded_devices": {part: entry}}

        mine = instance("c1", f"gpu-{config.key(one.id)}")
        self.assertEqual({one.id: "c1"}, held([mine], inventory.devices, "default"))
        others = held([mine, instance("stranger", "gpu0")], inventory.devices, "default")
        self.assertEqual({one.id: "c1", two.id: "stranger", WHOLE: "stranger"}, others)
