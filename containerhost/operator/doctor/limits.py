# SPDX-License-Identifier: Apache-2.0
"""Check limits of the kernel and the daemons that all containers of a host share.

Source of the values: "Server settings for a LXD production setup" of LXD's documentation
(doc/reference/server_settings.md). etc/sysctl/60-containerhost.conf sets them.
"""

import re
from collections.abc import Iterator, Mapping

from containerhost.devices.findings import Finding, note, wrong
from containerhost.linux.process.daemons import DAEMONS, running
from containerhost.operator.doctor.hostdata import HostData

NAME = "limits"
FILE = "60-containerhost.conf"
OPEN_FILES = 1048576
#: The least value of each setting, and what happens below it.
SETTINGS: Mapping[str, tuple[int, str]] = {
    "fs.inotify.max_user_instances": (
        1048576, "one container can take all, and inotify fails in all others and for root"),
    "fs.inotify.max_user_watches": (1048576, "containers share them, and one can take all"),
    "fs.inotify.max_queued_events": (1048576, "programs in containers lose events"),
    "kernel.keys.maxkeys": (2000, "no more containers than that start"),
    "kernel.keys.maxbytes": (2000000, "containers share them, and one can take all"),
    "kernel.dmesg_restrict": (1, "containers may read the host's kernel messages"),
    "fs.aio-max-nr": (524288, "containers share them, and databases in them fail to start"),
    "net.ipv4.neigh.default.gc_thresh3": (8192, "more containers on a bridge lose packets"),
    "net.ipv6.neigh.default.gc_thresh3": (8192, "more containers on a bridge lose packets"),
    "vm.max_map_count": (262144, "programs with many memory maps fail in containers"),
}
#: A neighbour can use these up: not safe.
_UNSAFE = frozenset({"fs.inotify.max_user_instances"})
_HARD = re.compile(r"Max open files\s+\S+\s+([0-9]{1,18})\s")


def check(data: HostData) -> Iterator[Finding]:
    for name, (least, below) in SETTINGS.items():
        value = data.host.number(f"/proc/sys/{name.replace('.', '/')}")
        if value is not None and value < least:
            yield (wrong if name in _UNSAFE else note)(
                NAME, name, f"it is {value}, less than {least}: {below}",
                f"install {FILE} in /etc/sysctl.d, and run `sysctl --system`")
    for pid, name in running(data.host):
        hard = next((int(match[1]) for line in data.host.lines(f"/proc/{pid}/limits") if (match := _HARD.match(line))),
                    OPEN_FILES)
        if hard < OPEN_FILES:
            yield note(NAME, name, f"it may have {hard} files open (process {pid}), and so may its containers",
                       f"LimitNOFILE={OPEN_FILES} in its service: systemctl edit {DAEMONS[name]}")
