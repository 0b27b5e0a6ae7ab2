# SPDX-License-Identifier: Apache-2.0
"""Apply the health rules to devices. Rules are data (:mod:`containerhost.devices.health.rules`).

A finding either makes a device sick, so that no new container gets it, or is a note that is only displayed. No state
is kept here: a device is healthy again as soon as its hardware, driver and kernel log report no error.
"""

from containerhost.devices.health.basics import driver_findings, of_nodes, response_findings
from containerhost.devices.health.bus import aer_findings, lane_findings
from containerhost.devices.health.kernellog import Log
from containerhost.devices.health.rules import WELL, Health, health_of
from containerhost.linux.sysfs import Host

__all__ = ("of_function", "of_nodes")


def of_function(host: Host, directory: str, address: str, driver: str | None, *, virtual: bool, log: Log) -> Health:
    """Return the findings about a PCI function of any kind.

    :param virtual: whether it is a VF, whose link and error counters are its physical function's
    :param log: the kernel's messages since it started
    """
    answers = health_of((*response_findings(host, directory), *driver_findings(driver)))
    link = WELL if virtual else health_of((*lane_findings(host, directory),
                                           *aer_findings(host, directory, log.counted(address))))
    return answers + log.health(address, driver) + link
