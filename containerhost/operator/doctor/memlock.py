# SPDX-License-Identifier: Apache-2.0
"""Check that the daemons can give containers the locked memory that RDMA needs."""

import re
from collections.abc import Iterator

from containerhost.devices.findings import Finding, wrong
from containerhost.linux.process.daemons import DAEMONS, running
from containerhost.linux.sysfs import Host
from containerhost.operator.doctor.hostdata import HostData

NAME = "memlock"
_HARD = re.compile(r"Max locked memory\s+\S+\s+(\S+)")
CAP_SYS_RESOURCE = 1 << 24  # capabilities(7)
_EVERY_ID = ["0", "0", "4294967295"]  # uid_map of the first user namespace, see user_namespaces(7)


def check(data: HostData) -> Iterator[Finding]:
    if not any(device.rdma for device in data.inventory.devices):
        return
    for pid, name in running(data.host):
        if (bound := hard_limit(data.host, pid)) is not None:
            yield wrong(NAME, name, f"it may give containers {bound} bytes of locked memory (process {pid}); one with "
                        "an RDMA device fails to start, or to register memory",
                        f"LimitMEMLOCK=infinity in its service: systemctl edit {DAEMONS[name]}")


def hard_limit(host: Host, pid: int) -> str | None:
    """Return the bytes of memory that a process may lock; None if it is unlimited, unknown, or may raise its limit.

    It may with the capability in the initial user namespace."""
    found = next((match[1] for line in host.lines(f"/proc/{pid}/limits") if (match := _HARD.match(line))), "unlimited")
    capabilities = host.fields(f"/proc/{pid}/status").get("CapEff", "")
    ids = (host.text(f"/proc/{pid}/uid_map") or "").split()
    capable = re.fullmatch(r"[0-9a-f]{1,16}", capabilities) and int(capabilities, 16) & CAP_SYS_RESOURCE
    return None if found == "unlimited" or (capable and ids == _EVERY_ID) else found
