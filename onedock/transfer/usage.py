# SPDX-License-Identifier: Apache-2.0
"""Report the sizes of the disks in a system datastore, in the format of OpenNebula's own `monitor_ds`."""

import re
from pathlib import Path

from onedock import datafiles
from onedriver import template

DISK = re.compile(r"disk\.([0-9]{1,4})")
MIB = 1 << 20


def of_datastore(directory: Path) -> str:
    """Return a line for each VM, with a MONITOR attribute of its disks and their snapshots, in MiB."""
    vms = sorted(path for path in directory.iterdir() if path.name.isdecimal()) if directory.is_dir() else []
    return "\n".join(template.vector("VM", {"ID": vm.name, "MONITOR": template.encoded({}, disks(vm))})
                     for vm in vms if disks(vm))


def disks(vm: Path) -> str:
    lines = []
    for path in sorted(vm.iterdir()):
        found = DISK.fullmatch(path.name)
        if found is None:
            continue
        lines.append(template.vector("DISK_SIZE", {"ID": found[1], "SIZE": mib(path)}))
        kept = datafiles.snapshots(path)
        lines += [template.vector("SNAPSHOT_SIZE", {"ID": file.name, "DISK_ID": found[1], "SIZE": mib(file)})
                  for file in (sorted(kept.iterdir()) if kept.is_dir() else ()) if file.name.isdecimal()]
    return "\n".join(lines)


def mib(path: Path) -> int:
    """Return the allocated size in MiB, not the virtual one."""
    return -(-path.stat().st_blocks * 512 // MIB)
