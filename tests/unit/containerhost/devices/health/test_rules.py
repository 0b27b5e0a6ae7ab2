# SPDX-License-Identifier: Apache-2.0
"""Every rule: what it finds bad, what it only notes, what it finds well."""

import types

import testtools

from containerhost.devices.health import basics, bus
from containerhost.devices.health.rules import Health, Verdict, health_of
from containerhost.devices.model import LinkLayer
from containerhost.inventory.scan import scan
from containerhost.vendors import drmlog
from containerhost.vendors.net import ports
from containerhost.vendors.nvidia import nvmlhealth, xids
from containerhost.vendors.nvidia.nvmlhealth import State
from containerhost.vendors.nvidia.xids import Xid
from tests.unit.containerhost.devices.health.test_kernellog import marked, record, xid
from tests.unit.containerhost.hosts import Broken

GPU, SLICED, PF, VF, ETHERNET_PF = "0000:3b:00.0", "0000:3c:00.0", "0000:5e:00.0", "0000:5e:00.1", "0000:d8:00.0"
RULES = (drmlog.WEDGED, *basics.RULES, *bus.RULES, *nvmlhealth.RULES, *ports.RULES, *xids.RULES)


def names(findings: object) -> list[str]:
    return [finding.rule.name for finding in findings]  # type: ignore[attr-defined]


class Table(testtools.TestCase):
    def test_every_rule_says_what_it_reads_when_it_ends_and_where_it_comes_from(self) -> None:
        self.assertEqual(len(RULES), len({rule.name for rule in RULES}))
        for rule in RULES:
            self.assertTrue(all((rule.reads, rule.says, rule.well, rule.source)), rule.name)

    def test_every_xid_has_a_kind(self) -> None:
        for number, (meaning, action) in xids.XIDS.items():
            self.assertIn(action, xids.KINDS, number)
            self.assertTrue(meaning)
        self.assertEqual(set(), set(xids.XIDS) & {*xids.NVLINK5, xids.RECOVERY})


class Xids(testtools.TestCase):
    def test_verdicts(self) -> None:
        for found, rule in (
            (Xid(48), xids.FATAL), (Xid(79), xids.FATAL), (Xid(95), xids.FATAL), (Xid(119), xids.FATAL),
            (Xid(74), xids.FATAL), (Xid(149, fatal=True), xids.FATAL), (Xid(154, action="X"), xids.ACTION),
            (Xid(154, action="X", code=2), xids.OTHER_ACTION), (Xid(154, action="X", code=9), xids.OTHER_ACTION),
            (Xid(13), xids.PASSING), (Xid(31), xids.PASSING), (Xid(43), xids.PASSING), (Xid(45), xids.PASSING),
            (Xid(63), xids.PASSING), (Xid(94), xids.PASSING), (Xid(149), xids.PASSING), (Xid(999), xids.UNKNOWN),
        ):
            (finding,) = xids.xid_findings([found])
            self.assertEqual(rule.name, finding.rule.name, found)

    def test_words(self) -> None:
        (fatal, app, other, asked) = (finding.text for finding in xids.xid_findings(
            [Xid(48, 3), Xid(31), Xid(999, 2), Xid(154, action="Node Reboot Required", code=2)]))
        self.assertEqual("Xid 48 (double bit ECC error), 3 times: NVIDIA's catalog requires RESET_GPU; "
                         "a hard reboot of the server or VM that holds it resets it, or `containerhost scrub` while "
                         "no container does", fatal)
        self.assertEqual("Xid 31 (GPU memory page fault): an error of the application that used it", app)
        self.assertEqual("Xid 999, 2 times: see NVIDIA's Xid catalog", other)
        self.assertEqual('Xid 154: only "Node Reboot Required" helps, which a reset of the GPU does not do', asked)


class Gpus(testtools.TestCase):
    def test_verdicts(self) -> None:
        for state, expected in (
            (State(), []),
            (State(action=0, uncorrected=0, retired=0, retiring=False, remapping=False, remap_failed=False), []),
            (State(lost="GPU is lost"), ["nvml-lost"]),
            (State(unknown="no answer"), ["nvml-unknown"]),
            (State(mismatched=True), ["nvml-mismatch"]),
            (State(action=1), ["nvml-recovery-action"]),
            (State(action=99), ["nvml-recovery-action"]),
            (State(uncorrected=2), ["nvml-ecc"]),
            (State(action=0, uncorrected=2), ["nvml-ecc-contained"]),
            (State(action=4, uncorrected=2), ["nvml-recovery-action", "nvml-ecc"]),
            (State(retired=59), []),
            (State(retired=60), ["nvml-retired-pages"]),
            (State(retiring=True), ["nvml-retirement-pending"]),
            (State(remap_failed=True, remapping=True), ["nvml-remap-failure", "nvml-remap-pending"]),
            (State(sliceless=True), ["nvml-mig-empty"]),
            (State(fabric="in progress"), ["nvml-fabric"]),
        ):
            self.assertEqual(expected, names(nvmlhealth._findings(state)), state)
        self.assertEqual(Health(), nvmlhealth.health(None))
        self.assertIn("drain and reset", nvmlhealth.health(State(action=4)).complaints[0])
        self.assertEqual((), nvmlhealth.health(State(remapping=True)).complaints)

    def test_what_is_read(self) -> None:
        self.assertEqual(State(action=1, uncorrected=3, retired=2, retiring=True, remapping=True, remap_failed=False),
                         nvmlhealth.read(Library(), "gpu"))
        self.assertEqual(State(action=None), nvmlhealth.read(Old(), "gpu"))


class Library:
    NVMLError = KeyError
    NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, NVML_SUCCESS = 230, 0
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC = 1, 0
    NVML_PAGE_RETIREMENT_CAUSE_MULTIPLE_SINGLE_BIT_ECC_ERRORS, NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR = 0, 1
    outcome = 0

    def nvmlDeviceGetFieldValues(self, handle: str, fields: list[int]) -> list[types.SimpleNamespace]:
        return [types.SimpleNamespace(nvmlReturn=self.outcome, value=types.SimpleNamespace(uiVal=1)) for _ in fields]

    def nvmlDeviceGetTotalEccErrors(self, handle: str, kind: int, counter: int) -> int:
        return {(1, 0): 3}[kind, counter]

    def nvmlDeviceGetRetiredPages(self, handle: str, cause: int) -> list[int]:
        return [4096]

    def nvmlDeviceGetRetiredPagesPendingStatus(self, handle: str) -> int:
        return 1

    def nvmlDeviceGetRemappedRows(self, handle: str) -> tuple[int, ...]:
        return 0, 1, 1, 0


class Old(Library):
    """A GPU and a library that know nothing of all this."""

    NVML_VOLATILE_ECC = 9
    outcome = 3

    def nvmlDeviceGetRetiredPages(self, handle: str, cause: int) -> list[int]:
        raise AttributeError("no such function")

    def nvmlDeviceGetRetiredPagesPendingStatus(self, handle: str) -> int:
        raise KeyError("not supported")

    nvmlDeviceGetRemappedRows = nvmlDeviceGetRetiredPagesPendingStatus  # type: ignore[assignment]


class Ports(testtools.TestCase):
    def test_cable(self) -> None:
        infiniband, ethernet = LinkLayer.INFINIBAND, LinkLayer.ETHERNET
        for layer, state, expected in (
            (infiniband, "linkup", []), (infiniband, None, []), (infiniband, "polling", ["ib-phys-state"]),
            (infiniband, "disabled", ["ib-phys-state"]), (ethernet, "disabled", []), (None, "disabled", []),
        ):
            self.assertEqual(expected, names(ports.cable_findings(layer, state, own=True)))
        self.assertIn("the port of its physical function has no link to its switch (phys_state polling)",
                      next(iter(ports.cable_findings(infiniband, "polling", own=False))).text)

    def test_port(self) -> None:
        for layer, state, phys_state, virtual, expected in (
            (LinkLayer.INFINIBAND, "active", "linkup", True, []),
            (LinkLayer.INFINIBAND, "init", "linkup", True, ["port-state"]),
            (LinkLayer.INFINIBAND, "init", None, False, ["port-state"]),
            (LinkLayer.INFINIBAND, "down", "disabled", True, ["port-phys-state"]),
            (LinkLayer.INFINIBAND, "down", "polling", False, []),  # the cable's rule is more specific
            (LinkLayer.ETHERNET, "down", "disabled", False, ["port-phys-state"]),
            (LinkLayer.ETHERNET, None, None, False, []),
        ):
            found = list(ports.port_findings(layer, state, phys_state, virtual=virtual))
            self.assertEqual(expected, names(found))
            self.assertEqual((), health_of(found).complaints)

    def test_carrier(self) -> None:
        for carrier, expected in (("1", []), (None, []), ("0", ["carrier"])):
            self.assertEqual(expected, names(ports.carrier_findings([carrier])))
        self.assertIs(Verdict.NOTE, ports.NO_CARRIER.verdict)


class OnAHost(testtools.TestCase):
    """From the files to the device."""

    def setUp(self) -> None:
        super().setUp()
        self.tree = self.useFixture(Broken("mixed"))

    def health(self, name: str = GPU) -> tuple[str, str]:
        device = scan(self.tree.host).get(name)
        return "; ".join(device.health), "; ".join(device.notes)

    def attribute(self, address: str, **values: object) -> None:
        for name, value in values.items():
            self.tree.function(address).joinpath(name).unlink(missing_ok=True)
            self.tree.function(address).joinpath(name).write_text(f"{value}\n")

    def log(self, *records: bytes) -> None:
        self.tree.path("/dev/kmsg").write_bytes(b"".join(records))

    def test_nothing_is_wrong(self) -> None:
        self.assertEqual({("", "")}, {self.health(device.id) for device in scan(self.tree.host).devices})

    def test_xids(self) -> None:
        self.log(xid(31), xid(48))
        sick, notes = self.health()
        self.assertIn("Xid 48", sick)
        self.assertIn("Xid 31", notes)
        self.assertEqual(("", ""), self.health(SLICED))
        self.log(xid(31), xid(48), marked())
        self.assertEqual(("", ""), self.health())

    def test_a_sick_gpus_slices_are_sick(self) -> None:
        self.log(xid(95, gpu=SLICED[:10]), record("another message"))
        for device in scan(self.tree.host).by_address(SLICED):
            self.assertIn("Xid 95", "; ".join(device.health), device.id)

    def test_lanes(self) -> None:
        for current, own, slot, sick, note in (
            (16, 16, 16, "", ""), (8, 16, 8, "", ""), (8, 16, 16, "", "8 lanes, but card and slot have 16"),
            (8, 16, "", "", "8 lanes"), (0, 16, 16, "", ""), (63, 16, 16, "", ""), (8, 63, 16, "", ""),
            ("Unknown", 16, 16, "", ""), (8, 0, 16, "", ""),
        ):
            self.attribute(GPU, current_link_width=current, max_link_width=own)
            bridge = self.tree.function(GPU).parent / "max_link_width"
            bridge.write_text(f"{slot}\n")
            for word, found in zip((sick, note), self.health(), strict=True):
                self.assertIn(word, found)
                self.assertEqual(bool(word), bool(found), (current, own, slot))

    def test_a_vf_has_no_link_of_its_own(self) -> None:
        self.attribute(VF, current_link_width=0, max_link_width=16, aer_dev_fatal="TOTAL_ERR_FATAL 3")
        self.assertEqual(("", ""), self.health(VF))

    def test_errors_of_the_link(self) -> None:
        for fatal, nonfatal, mark, sick, note in (
            (0, 0, {}, "", ""), (2, 0, {}, "2 fatal errors", ""), (0, 3, {}, "", "3 errors"),
            (2, 3, {"aer_dev_fatal": 2, "aer_dev_nonfatal": 3}, "", ""),
            (3, 3, {"aer_dev_fatal": 2, "aer_dev_nonfatal": 3}, "1 fatal errors", ""),
            (1, 0, {"aer_dev_fatal": 2}, "", ""),  # the card was plugged in again: its counters start at 0
        ):
            self.attribute(GPU, aer_dev_fatal=f"DLP 0\nSDES {fatal}\nTOTAL_ERR_FATAL {fatal}",
                           aer_dev_nonfatal=f"CmpltTO {nonfatal}\nTOTAL_ERR_NONFATAL {nonfatal}")
            self.log(marked(**mark))
            for word, found in zip((sick, note), self.health(), strict=True):
                self.assertIn(word, found)
                self.assertEqual(bool(word), bool(found), (fatal, nonfatal, mark))

    def test_odd_counters_are_none(self) -> None:
        for odd in ("", "TOTAL_ERR_FATAL", "TOTAL_ERR_FATAL -1", "\0" * 50, "TOTAL_ERR_FATAL 1e9"):
            self.attribute(PF, aer_dev_fatal=odd)
            self.assertNotIn("99", self.health(PF)[0])

    def test_a_pulled_cable_makes_the_card_and_its_vfs_sick(self) -> None:
        port = self.tree.function(PF) / "infiniband/mlx5_0/ports/1"
        port.joinpath("phys_state").unlink()
        port.joinpath("phys_state").write_text("2: Polling\n")
        self.assertIn("its port has no link to its switch (phys_state polling)", self.health(PF)[0])
        self.assertIn("the port of its physical function has no link", self.health(VF)[0])

    def test_a_vfs_own_port_is_only_noted(self) -> None:
        port = self.tree.function(VF) / "infiniband/mlx5_1/ports/1"
        for name, value in (("state", "1: DOWN"), ("phys_state", "3: Disabled")):
            port.joinpath(name).unlink()
            port.joinpath(name).write_text(f"{value}\n")
        self.assertEqual(("", "its port has no link (phys_state disabled)"), self.health(VF))

    def test_an_interface_without_carrier_is_noted(self) -> None:
        (device,) = [device for device in scan(self.tree.host).devices
                     if device.link_layer is LinkLayer.ETHERNET and device.parent is None and not device.rdma]
        carrier = self.tree.function(device.address) / f"net/{device.netdev}/carrier"
        carrier.unlink()
        carrier.write_text("0\n")
        self.assertEqual(("", "its interface is up, but has no carrier: check cable and switch"),
                         self.health(device.address))
