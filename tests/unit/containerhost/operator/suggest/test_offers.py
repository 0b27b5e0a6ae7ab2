# SPDX-License-Identifier: Apache-2.0
import dataclasses

import testtools

from containerhost.devices.model import Kind, Role
from containerhost.inventory.scan import Inventory, scan
from containerhost.operator.suggest.offers import offers, unprovisioned
from tests.unit.containerhost.hosts import Broken, shared


def found(name: str) -> dict[str, tuple[str, ...]]:
    return {offer.name: tuple(device.id for device in offer.devices) for offer in offers(scan(shared(name)))}


class OffersTest(testtools.TestCase):
    def test_host_with_one_of_everything(self) -> None:
        offered = found("mixed")
        self.assertEqual(("0000:5e:00.1", "0000:5e:00.2", "0000:5e:00.3", "0000:5e:00.4"), offered["infiniband-vf"])
        self.assertEqual(("0000:d8:00.2", "0000:d8:00.3"), offered["roce-vf"])
        self.assertEqual(("0000:31:10.0", "0000:31:10.2"), offered["ethernet-vf"])
        self.assertEqual(("0000:3b:00.0",), offered["gpu-nvidia-a100-sxm4-40gb"])
        self.assertEqual(("0000:83:00.0", "0000:84:00.0"), offered["gpu-amd-instinct-mi100"])

    def test_gpu_that_is_cut_is_offered_as_its_slices(self) -> None:
        devices = scan(shared("mixed")).devices
        named = tuple(dataclasses.replace(device, slice=dataclasses.replace(device.slice, profile="1g.5gb"))
                      if device.slice else device for device in devices)
        offered = {offer.name: offer.devices for offer in offers(Inventory(named))}
        self.assertEqual(4, len(offered["slice-1g-5gb"]))
        self.assertNotIn("0000:3c:00.0", [device.id for group in offered.values() for device in group])

    def test_slices_of_each_profile_have_a_name_of_their_own(self) -> None:
        profiles = ["1g.24gb", "1g.24gb+me", "1g.24gb-me", "1g.24gb+me.all", "1g.24gb+gfx", "1c.2g.48gb"]
        first = next(device for device in scan(shared("mixed")).devices if device.slice)
        slices = [dataclasses.replace(first, id=f"{first.address}/gi{number}/ci0",
                                      slice=dataclasses.replace(first.slice, profile=profile))
                  for number, profile in enumerate(profiles)]
        names = [offer.name for offer in offers(Inventory(tuple(slices)))]
        self.assertEqual(len(profiles), len(set(names)), names)
        self.assertIn("slice-1g-24gb-no-me", names)

    def test_what_the_host_needs_is_not_offered(self) -> None:
        ids = {name for group in found("mixed").values() for name in group}
        self.assertEqual(set(), ids & {"0000:31:00.0", "0000:5e:00.0", "0000:d8:00.0", "0000:d8:00.1"})
        self.assertEqual({}, found("fabrics"))  # their interfaces are up

    def test_infiniband_card_without_vfs_that_is_not_in_use(self) -> None:
        tree = self.useFixture(Broken("fabrics"))
        flags = next((tree.function("0000:65:00.0") / "net").glob("*/flags"))
        flags.write_text("0x1002\n")
        self.assertEqual([("infiniband-card", "0000:65:00.0")],
                         [(offer.name, offer.first.id) for offer in offers(scan(tree.host))])

    def test_names_are_unique(self) -> None:
        """Two models of cards: their ids follow."""
        devices = scan(shared("mixed")).devices
        other = tuple(dataclasses.replace(device, product_id="101e") if device.id == "0000:5e:00.2" else device
                      for device in devices)
        names = [offer.name for offer in offers(Inventory(other))]
        self.assertEqual(len(names), len(set(names)))
        self.assertLessEqual({"infiniband-vf-15b3-101c", "infiniband-vf-15b3-101e"}, set(names))

    def test_sick_devices_belong_to_an_offer(self) -> None:
        self.assertIn("0000:3c:00.0", [name for group in found("broken").values() for name in group])

    def test_cards_without_virtual_functions(self) -> None:
        self.assertEqual(["0000:d8:00.1"], [device.id for device in unprovisioned(scan(shared("mixed")))])

    def test_gpu_with_virtual_functions_is_not_offered_whole(self) -> None:
        gpu = next(device for device in scan(shared("small")).devices if device.kind is Kind.GPU)
        pf = dataclasses.replace(gpu, role=Role.PF, total_vfs=4)
        self.assertEqual(1, len(offers(Inventory((pf,)))))
        in_use = dataclasses.replace(pf, host_use=("2 virtual functions are enabled",))
        self.assertEqual((), offers(Inventory((in_use,))))
