# SPDX-License-Identifier: Apache-2.0
"""Test the rate at which a virtual function may send, enforced by its card, under every driver."""

from tests.functional.nova import base  # isort: skip (decides how nova runs)

import json
import subprocess
from typing import Any

from containerhost.devices.model import Device, Role
from containerhost.inventory.scan import scan
from onedriver.pciaddress import from_device_id
from tests import levels
from tests.functional_one.test_actions import CLEANUP, ActionsCase
from tests.functional_one.vms import Machine
from tests.functional_onedock.base import OnedockCase

ETHERNET, INFINIBAND, WITHOUT_RATES = "0000:31:00.0", "0000:5e:00.0", "0000:d8:00.0"
REASONS = {INFINIBAND: "the kernel limits no InfiniBand function", WITHOUT_RATES: "Operation not supported"}


def functions(card: str) -> list[Device]:
    return [device for device in scan().devices if device.parent == card and device.role is Role.VF]


def alias(card: str) -> str:
    """The name of a card's virtual functions in flavors: a colon would end it."""
    return card.replace(":", "-")


def rates(card: str = ETHERNET) -> list[int]:
    """Mbit/s of each virtual function of a card, 0 without limit; the highest first."""
    shown = json.loads(subprocess.run(["ip", "-j", "link", "show", "dev", scan().get(card).netdev], check=True,
                                      capture_output=True, text=True).stdout)[0]
    return sorted((vf["rate"]["max_tx"] for vf in shown["vfinfo_list"]), reverse=True)


class NovaTest(base.LxdServers):
    def _configure(self) -> None:
        super()._configure()
        ids = {card: {"vendor_id": vf.vendor_id, "product_id": vf.product_id}
               for card in (ETHERNET, *REASONS) for vf in functions(card)[:1]}
        self.flags(device_spec=[json.dumps(each) for each in ids.values()], group="pci", alias=[
            json.dumps(each | {"name": alias(card), "device_type": "type-VF"}) for card, each in ids.items()])

    def limited(self, card: str) -> str:
        return self.flavor(pci_passthrough__alias=f"{alias(card)}:1", lxd__vf_max_tx_rate="100")

    def test_limited_until_the_server_is_deleted(self) -> None:
        server = self.server(self.limited(ETHERNET))
        self.assertEqual([100, 0], rates())
        self._reboot_server(server, hard=True)
        self.assertEqual([100, 0], rates())
        self._delete_server(server)
        self.assertEqual([0, 0], rates())
        self.assert_nothing_left()


class OpenNebulaContract:
    """Under either of OpenNebula's drivers."""

    def element(self, card: str, more: str = "") -> str:
        address = from_device_id(functions(card)[0].id).address
        return (f"<PCI><ADDRESS>{address}</ADDRESS><MAC>02:00:0a:63:01:0a</MAC><NIC_ID>3</NIC_ID><TYPE>NIC</TYPE>"
                f"<PCI_ID>0</PCI_ID><OUTBOUND_AVG_BW>12500</OUTBOUND_AVG_BW>{more}</PCI>")

    def test_limited_until_it_goes(self) -> None:
        machine: Any = self.deployed()
        more = machine.changed(more=self.element(ETHERNET, "<ATTACH>YES</ATTACH>"))
        self.ok("attach_nic", more, "02:00:0a:63:01:0a", "-", "-", "bridge", "one-1-3")
        self.assertEqual([100, 0], rates())
        self.ok("detach_nic", more, "02:00:0a:63:01:0a")
        self.assertEqual([0, 0], rates())
        self.ok("cancel", machine, lcm=CLEANUP)

    def test_refused_where_it_cannot_be_held(self) -> None:
        for card, reason in REASONS.items():
            machine = Machine(more=self.element(card))
            self.node.give_disk(machine)
            self.refused(reason, "deploy", machine, lcm=2)


@levels.exhaustive("nova has it on LXD", tests=("test_limited_until_it_goes",))
class LxdoneTest(OpenNebulaContract, ActionsCase):
    pass


class OnedockTest(OpenNebulaContract, OnedockCase):
    pass
