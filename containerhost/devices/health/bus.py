# SPDX-License-Identifier: Apache-2.0
"""Check the PCI Express link of a card and the errors that the kernel counts on it."""

import re
from collections.abc import Iterator, Mapping

from containerhost.devices.health.rules import Finding, Rule, Verdict
from containerhost.linux.sysfs import Host

LANES = Rule(
    name="link-width", verdict=Verdict.NOTE, reads="current_link_width and max_link_width, of the card and its slot",
    says="its link has {width} lanes, but card and slot have {possible}: reseat the card",
    well="the link is trained to its full width",
    source="Linux Documentation/ABI/testing/sysfs-bus-pci; a note, as GPUs may drop lanes to save power")
FATAL = Rule(
    name="aer-fatal", verdict=Verdict.SICK, reads="aer_dev_fatal",
    says="{count} fatal errors on its link (aer_dev_fatal): it must be reset; a hard reboot of the "
         "server or VM that holds it does, or `containerhost scrub {address}` while no container does",
    well="it was reset by `containerhost scrub`, at a hard reboot or on its return",
    source="Linux Documentation/PCI/pcieaer-howto.rst: after a fatal error the link is not reliable")
NONFATAL = Rule(
    name="aer-nonfatal", verdict=Verdict.NOTE, reads="aer_dev_nonfatal",
    says="{count} errors on its link that lost a transaction (aer_dev_nonfatal)",
    well="it was reset likewise",
    source="Linux Documentation/PCI/pcieaer-howto.rst: the link itself is fully functional")
RULES = (LANES, FATAL, NONFATAL)

COUNTERS = ("aer_dev_fatal", "aer_dev_nonfatal")
_UNKNOWN_WIDTH = 63  # what all ones read as
_TOTAL = re.compile(r"TOTAL_ERR_[A-Z]+ ([0-9]{1,18})")


def lane_findings(host: Host, directory: str) -> Iterator[Finding]:
    """Report a link that is narrower than possible; a width of 0 is ignored.

    A function whose link is down cannot be read, and the widths of a VF that was passed through to a virtual machine
    are 0 (SR-IOV 1.1, 3.5.8)."""
    width, own = host.number(f"{directory}/current_link_width"), host.number(f"{directory}/max_link_width")
    if not width or not own or _UNKNOWN_WIDTH in (own, width):
        return
    slot = host.number(f"{directory.rpartition('/')[0]}/max_link_width")  # of the upstream port, if any
    possible = min(own, slot) if slot else own
    if width < possible:
        yield LANES.finds(width=width, possible=possible)


def aer_findings(host: Host, directory: str, before: Mapping[str, int]) -> Iterator[Finding]:
    """Report errors that the kernel counted on the card.

    :param before: the counters when the device was last reset, which does not clear them
    """
    for rule, counter in ((FATAL, COUNTERS[0]), (NONFATAL, COUNTERS[1])):
        count = counted(host, directory, counter) - before.get(counter, 0)
        if count > 0:
            yield rule.finds(count=count, address=directory.rpartition("/")[2])


def counted(host: Host, directory: str, counter: str) -> int:
    """Return the total at the end of a counter's file (Documentation/ABI/testing/sysfs-bus-pci-devices-aer_stats)."""
    match = _TOTAL.search(host.text(f"{directory}/{counter}") or "")
    return int(match[1]) if match else 0
