# SPDX-License-Identifier: Apache-2.0
"""VMs as oned writes them, small."""

import dataclasses
from xml.sax import saxutils

from containerhost.devices.model import Device
from onedriver.node.devices import product
from onedriver.pciaddress import from_device_id

MESSAGE = ("<VMM_DRIVER_ACTION_DATA><HOST>node1</HOST><MIGR_HOST/><DEPLOY_ID>{name}</DEPLOY_ID>{vm}"
           "<DATASTORE><ID>0</ID><NAME>system</NAME><BASE_PATH><![CDATA[/var/lib/one//datastores/0]]></BASE_PATH>"
           "<TYPE>1</TYPE></DATASTORE></VMM_DRIVER_ACTION_DATA>")
ROOT = ("<DISK><DISK_ID><![CDATA[0]]></DISK_ID><TYPE><![CDATA[FILE]]></TYPE><FORMAT>raw</FORMAT><READONLY>NO</READONLY>"
        "<SAVE><![CDATA[NO]]></SAVE><SIZE><![CDATA[256]]></SIZE><TARGET>sda</TARGET></DISK>")


@dataclasses.dataclass(frozen=True)
class Machine:
    """:ivar more: elements of its template
    :ivar attach: the last of its devices or NICs is what attach_nic or detach_nic is about
    :ivar context: variables for its guest
    :ivar nic_more: elements of each of its NICs
    :ivar uid: its owner's
    :ivar user: elements of its user template
    """

    id: int = 1
    cpu: str = "1"
    vcpu: int = 1
    memory: int = 128
    devices: tuple[Device, ...] = ()
    nics: tuple[int, ...] = ()
    attach: str = ""
    disks: str = ROOT
    more: str = ""
    context: tuple[tuple[str, str], ...] = (("NETWORK", "YES"),)
    bridge: str = "one-br0"
    nic_more: str = ""
    stime: int = 1795247695
    uid: int = 0
    user: str = ""

    @property
    def name(self) -> str:
        return f"one-{self.id}"

    def changed(self, **values: object) -> "Machine":
        return dataclasses.replace(self, **values)

    def message(self, lcm: int) -> str:
        return MESSAGE.format(name=self.name, vm=self.vm(lcm, self.name))

    def deployment(self, lcm: int) -> str:
        return self.vm(lcm, "")

    def vm(self, lcm: int, deploy_id: str) -> str:
        context = "".join(f"<{key}>{saxutils.escape(value)}</{key}>" for key, value in self.context)
        return (f"<VM><ID>{self.id}</ID><UID>{self.uid}</UID><NAME>vm {self.id}</NAME><STATE>3</STATE>"
                f"<LCM_STATE>{lcm}</LCM_STATE><STIME>{self.stime}</STIME>"
                f"<DEPLOY_ID>{deploy_id}</DEPLOY_ID><TEMPLATE><CONTEXT>{context}</CONTEXT><CPU>{self.cpu}</CPU>"
                f"{self.disks}<MEMORY>{self.memory}</MEMORY>{self.parts()}<VCPU>{self.vcpu}</VCPU>{self.more}"
                f"<VMID>{self.id}</VMID></TEMPLATE><USER_TEMPLATE>{self.user}</USER_TEMPLATE>"
                f"<HISTORY_RECORDS><HISTORY><OID>{self.id}</OID>"
                "<SEQ>0</SEQ><HOSTNAME>node1</HOSTNAME><DS_ID>0</DS_ID></HISTORY></HISTORY_RECORDS></VM>")

    def parts(self) -> str:
        pcis = [self.pci(place, device) for place, device in enumerate(self.devices)]
        nics = [self.nic(number) for number in self.nics]
        mark = "<ATTACH>YES</ATTACH>"
        if self.attach == "nic":
            nics[-1] = nics[-1].replace("<NIC>", f"<NIC>{mark}")
        if self.attach == "pci":
            pcis[-1] = pcis[-1].replace("<PCI>", f"<PCI>{mark}<TYPE>NIC</TYPE><NIC_ID>{len(pcis) + 10}</NIC_ID>")
        return "".join((*nics, *pcis))

    def nic(self, number: int) -> str:
        return (f"<NIC><BRIDGE>{self.bridge}</BRIDGE><MAC>{self.mac(number)}</MAC><NIC_ID>{number}</NIC_ID>"
                f"<TARGET>{self.name}-{number}</TARGET><VN_MAD>dummy</VN_MAD>{self.nic_more}</NIC>")

    def mac(self, number: int) -> str:
        return f"02:00:0a:63:{self.id:02x}:{number:02x}"

    @staticmethod
    def pci(place: int, device: Device) -> str:
        return (f"<PCI><ADDRESS>{from_device_id(device.id).address}</ADDRESS><CLASS>{device.class_code[:4]}</CLASS>"
                f"<DEVICE>{product(device)}</DEVICE><PCI_ID>{place}</PCI_ID><VENDOR>{device.vendor_id}</VENDOR></PCI>")
