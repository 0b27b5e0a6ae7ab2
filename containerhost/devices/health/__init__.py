"""What can be wrong with a device. Rules are data (:mod:`containerhost.devices.health.rules`); here they are applied.

A finding of a rule either makes a device sick, so that nobody new is given it, or is a note that is only shown. Nothing
is remembered here: a device whose hardware, driver and kernel log say nothing bad any more is well again.
"""

from collections.abc import Iterator

from containerhost.devices.health.basics import driver_findings, of_nodes, silence
from containerhost.devices.health.bus import aer_findings, lane_findings
from containerhost.devices.health.kernellog import Log
from containerhost.devices.health.rules import Finding, Health, health_of
from containerhost.devices.health.xids import xid_findings
from containerhost.sysfs import Host

__all__ = ("of_function", "of_nodes")


def of_function(host: Host, folder: str, address: str, driver: str | None, *, virtual: bool, log: Log) -> Health:
    """What holds for any PCI function.

    :param folder: the function's folder below /sys
    :param virtual: whether it is a VF, whose link and error counters are its physical function's
    :param log: what the kernel said since it started
    """
    return health_of(_findings(host, folder, address, driver, virtual=virtual, log=log))


def _findings(host: Host, folder: str, address: str, driver: str | None, *, virtual: bool, log: Log
              ) -> Iterator[Finding]:
    yield from silence(host, folder)
    yield from driver_findings(driver)
    yield from xid_findings(log.xids(address))
    if not virtual:
        yield from lane_findings(host, folder)
        yield from aer_findings(host, folder, log.counted(address))
