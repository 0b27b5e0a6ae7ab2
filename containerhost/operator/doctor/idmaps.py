# SPDX-License-Identifier: Apache-2.0
"""Check that root has user and group ids for containers (subuid(5)): LXD gives each isolated one 65536 ids."""

from collections.abc import Iterator

from containerhost.devices.findings import Finding, note, wrong
from containerhost.linux.process.daemons import running
from containerhost.linux.sysfs import Host
from containerhost.operator.doctor.hostdata import HostData

NAME = "idmaps"
FILES = ("/etc/subuid", "/etc/subgid")
EACH = 65536
FEW = 16  # number of containers
_OWNERS = ("root", "0")
_USERS = ("lxd", "incusd")


def check(data: HostData) -> Iterator[Finding]:
    """Yield findings if LXD or Incus runs. Without the files, they use their own default ranges."""
    if not any(name in _USERS for _, name in running(data.host)):
        return
    for file in FILES:
        if not data.host.exists(file):
            continue
        room = count(data.host, file) // EACH
        remedy = f"give root more: echo root:1000000:1000000000 >> {file}, and restart the daemon"
        if room == 0:
            yield wrong(NAME, file, f"root has less than {EACH} ids, so no unprivileged container starts", remedy)
        elif room < FEW:
            yield note(NAME, file, f"root has ids for {room} containers with ids of their own", remedy)


def count(host: Host, file: str) -> int:
    """Return the size of root's largest range: LXD uses one range for each container."""
    rows = (line.split(":") for line in host.lines(file))
    sizes = [int(row[2]) for row in rows
             if len(row) == 3 and row[0] in _OWNERS and row[2].isascii() and row[2].isdigit()]
    return max(sizes, default=0)
