# SPDX-License-Identifier: Apache-2.0
"""The page of what onedock supports says what the driver does: nothing is missing in it, and nothing is untrue."""

from collections.abc import Mapping
from typing import ClassVar

import testtools

from containerhost.engines.docker import config
from onedock import attributes, lcm_states, nics, translate
from onedock.conf import Options
from onedock.transfer import actions
from onedock.transfer.actions import ACTIONS as TRANSFER
from onedock.vmm import Vmm
from onedriver import document, vm
from onedriver.errors import NotSupported
from onedriver.node import context, devices
from onedriver.node.limits import NodeCores, shared_memory
from onedriver.section import restarts_to_migrate
from tests.unit.onedriver import supporttable

VM = ("<VM><ID>1</ID><UID>0</UID><LCM_STATE>2</LCM_STATE><TEMPLATE>{}<VMID>1</VMID></TEMPLATE><USER_TEMPLATE/>"
      "<HISTORY_RECORDS><HISTORY><SEQ>0</SEQ><DS_ID>0</DS_ID></HISTORY></HISTORY_RECORDS></VM>")
USUAL = ("<CPU>1</CPU>", "<MEMORY>64</MEMORY>", "<DISK><DISK_ID>0</DISK_ID><TYPE>FILE</TYPE><SIZE>8</SIZE></DISK>")
DISK = "<DISK><DISK_ID>5</DISK_ID><TYPE>{}</TYPE><SIZE>8</SIZE>{}</DISK>"
NIC = ("<NIC><NIC_ID>0</NIC_ID><BRIDGE>br0</BRIDGE><MAC>02:00:00:00:00:01</MAC><TARGET>one-1-0</TARGET>{}</NIC>")
NODES = {0: frozenset({0, 1}), 1: frozenset({2, 3})}


def effect(elements: str) -> object:
    """Everything that the driver makes of a template before it acts."""
    usual = "".join(element for element in USUAL
                    if element.startswith("<DISK>") or not elements.startswith(element.partition(">")[0]))
    found = vm.vm(document.parse(VM.format(usual + elements).encode(), "VM"), attributes.PREFIX)
    context.require_possible(found.context)
    spec = translate.spec(found, attributes.read(found.own, found.context), Options(), NodeCores(NODES))
    return (config.container(spec, None), spec.cpu.affinity, shared_memory(found), translate.volumes(found),
            [(nics.pair(found, nic), nics.spec_nic(found, nic), nic.bandwidth) for nic in found.nics],
            [(pci.chosen().device_id, devices.rate(pci)) for pci in found.pcis], context.script(found.context),
            restarts_to_migrate(found.own, attributes.LIVE_MIGRATION))


class SupportTest(supporttable.SupportContract):
    page, driver, vmm, unsupported = "onedock-support.md", "onedock", Vmm, lcm_states.UNSUPPORTED
    effect = staticmethod(effect)
    samples: ClassVar[Mapping[str, str]] = {
        "CPU": "<CPU>2</CPU>",
        "VCPU": "<VCPU>2</VCPU>",
        "MEMORY": "<MEMORY>128</MEMORY>",
        "TOPOLOGY/PIN_POLICY": "<TOPOLOGY><PIN_POLICY>CORE</PIN_POLICY></TOPOLOGY><NUMA_NODE><CPUS>0</CPUS>"
                               "<MEMORY_NODE_ID>0</MEMORY_NODE_ID></NUMA_NODE>",
        "TOPOLOGY/HUGEPAGE_SIZE": "<TOPOLOGY><HUGEPAGE_SIZE>2</HUGEPAGE_SIZE></TOPOLOGY>",
        "HPC/AFFINITY": "<HPC><AFFINITY>cpumem</AFFINITY></HPC>",
        "HPC/ELASTIC": "<CPU>2</CPU><HPC><ELASTIC>cores=1</ELASTIC></HPC>",
        "HPC/SHARED_MEMORY": "<HPC><JOB>wave</JOB><SHARED_MEMORY>8</SHARED_MEMORY></HPC>",
        "DISK (image)": DISK.format("FILE", ""),
        "DISK (TYPE=fs)": DISK.format("fs", ""),
        "DISK (TYPE=swap)": DISK.format("swap", ""),
        "DISK (TYPE=CDROM)": DISK.format("CDROM", ""),
        "DISK/READONLY": DISK.format("FILE", "<READONLY>YES</READONLY>"),
        "NIC": NIC.format(""),
        "NIC/MTU": NIC.format("<MTU>9000</MTU>"),
        "NIC/INBOUND_AVG_BW": NIC.format("<INBOUND_AVG_BW>100</INBOUND_AVG_BW>"),
        "NIC/OUTBOUND_AVG_BW": NIC.format("<OUTBOUND_AVG_BW>100</OUTBOUND_AVG_BW>"),
        "PCI": "<PCI><ADDRESS>0000:17:00:0</ADDRESS></PCI>",
        "PCI/OUTBOUND_AVG_BW": "<PCI><ADDRESS>0000:17:00:0</ADDRESS><OUTBOUND_AVG_BW>125</OUTBOUND_AVG_BW></PCI>",
        "CONTEXT": "<CONTEXT><KEY>value</KEY></CONTEXT>",
        "CONTEXT/FILES_DS": "<CONTEXT><FILES_DS>/x</FILES_DS></CONTEXT>",
        "CONTEXT/SET_HOSTNAME": "<CONTEXT><SET_HOSTNAME>web</SET_HOSTNAME></CONTEXT>",
        "GRAPHICS": "<GRAPHICS><TYPE>VNC</TYPE><PORT>5901</PORT></GRAPHICS>",
        "FEATURES": "<FEATURES><ACPI>YES</ACPI></FEATURES>",
        "OS/BOOT": "<OS><BOOT>disk0</BOOT></OS>",
        "RAW": "<RAW><TYPE>kvm</TYPE><DATA>x</DATA></RAW>",
        **{f"DOCKER_{name}": f"<DOCKER_{name}>{value}</DOCKER_{name}>" for name, value in (
            ("ENTRYPOINT", "sh"), ("COMMAND", "ls"), ("ENVIRONMENT", "A=b"), ("WORKDIR", "/tmp"), ("USER", "1000"),
            ("HOSTNAME", "web"), ("HEALTH_COMMAND", "ls"), ("READ_ONLY", "YES"), ("PROCESS_LIMIT", "9"),
            ("LIVE_MIGRATION", "restart"), ("RAW", "pids-limit=9"), ("PRIVILEGED", "YES"))},
    }
    without: ClassVar[Mapping[str, str]] = {
        "DISK/READONLY": DISK.format("FILE", ""),
        "NIC/MTU": NIC.format(""),
        "NIC/INBOUND_AVG_BW": NIC.format(""),
        "NIC/OUTBOUND_AVG_BW": NIC.format(""),
        "PCI/OUTBOUND_AVG_BW": "<PCI><ADDRESS>0000:17:00:0</ADDRESS></PCI>",
        "CONTEXT/FILES_DS": "<CONTEXT><KEY>value</KEY></CONTEXT>",
        "CONTEXT/SET_HOSTNAME": "<CONTEXT><KEY>value</KEY></CONTEXT>",
    }


class ScriptsTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        page = (supporttable.ROOT / "doc/source/onedock-support.md").read_text(encoding="utf-8")
        self.told = supporttable.rows(page, "Transfers and images")

    def test_every_script_is_told(self) -> None:
        directories = {kind: supporttable.ROOT / f"etc/opennebula/remotes/{kind}/onedock" for kind
                       in ("tm", "datastore")}
        self.assertEqual({f"{kind}/{file.name}" for kind, directory in directories.items() for file
                          in directory.iterdir()},
                         set(self.told))

    def test_what_is_refused_is_and_nothing_else_at_once(self) -> None:
        """Test that an action refuses what it always refuses before it looks at its arguments."""
        refused = set()
        for name in TRANSFER:
            try:
                TRANSFER[name][0](actions.Call((), 1))
            except NotSupported:
                refused.add(f"tm/{name}")
            except IndexError:
                continue
        self.assertEqual({name for name, row in self.told.items() if row[0] == "refused"}, refused)
