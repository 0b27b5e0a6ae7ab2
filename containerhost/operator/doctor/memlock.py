# SPDX-License-Identifier: Apache-2.0
"""Check that the daemons can give containers the locked memory that RDMA needs."""

import re
from collections.abc import Iterator

from containerhost.devices.findings import Finding, wrong
from containerhost.linux.process.daemons import DAEMONS, running
from containerhost.operator.doctor.seen import Seen

NAME = "memlock"
_HARD = re.compile(r"Max locked memory\s+\S+\s+(\S+)")
_CAP_SYS_RESOURCE = 1 << 24  # capabilities(7)
_EVERY_ID = ["0", "0", "4294967295"]  # uid_map of the first user namespace, see user_namespaces(7)


def check(seen: Seen) -> Iterator[Finding]:
    if not any(device.rdma for device in seen.inventory.devices):
        return
    for pid, name in running(seen.host):
        limits = seen.host.lines(f"/proc/{pid}/limits")
        hard = next((match[1] for line in limits if (match := _HARD.match(line))), None)
        if hard not in (None, "unlimited") and not _may_raise(seen, pid):
            yield wrong(NAME, name, f"it may give containers {hard} bytes of locked memory (process {pid}); one with "
                        "an RDMA device fails to start, or to register memory",
                        f"LimitMEMLOCK=infinity in its service: systemctl edit {DAEMONS[name]}")


def _may_raise(seen: Seen, pid: int) -> bool:
    """Return whether the process may exceed its limit: it has the capability in the initial user namespace."""
    capabilities = seen.host.fields(f"/proc/{pid}/status").get("CapEff", "0")
    ids = (seen.host.text(f"/proc/{pid}/uid_map") or "").split()
    return bool(re.fullmatch(r"[0-9a-f]{1,16}", capabilities) and int(capabilities, 16) & _CAP_SYS_RESOURCE
                and ids == _EVERY_ID)
