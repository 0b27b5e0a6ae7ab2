# SPDX-License-Identifier: Apache-2.0
"""What can be wrong with a device. Rules are data (:mod:`containerhost.devices.health.rules`); here they are applied.

A finding of a rule either makes a device sick, so that nobody new is given it, or is a note that is only shown. Nothing
is remembered here: a device whose hardware, driver and kernel log say nothing bad any more is well again.
"""

from containerhost.devices.health.basics import driver_findings, of_nodes, silence
from containerhost.devices.health.bus import aer_findings, lane_findings
from containerhost.devices.health.kernellog import Log
from containerhost.devices.health.rules import WELL, Health, health_of
from containerhost.sysfs import Host

__all__ = ("of_function", "of_nodes")


def of_function(host: Host, folder: str, address: str, driver: str | None, *, virtual: bool, log: Log) -> Health:
    """What holds for any PCI function.

    :param folder: the function's folder below /sys
    :param virtual: whether it is a VF, whose link and error counters are its physical function's
    :param log: what the kernel said since it started
    """
    answers = health_of((*silence(host, folder), *driver_findings(driver)))
    link = WELL if virtual else health_of((*lane_findings(host, folder),
                                           *aer_findings(host, folder, log.counted(address))))
    return answers + log.health(address) + link
