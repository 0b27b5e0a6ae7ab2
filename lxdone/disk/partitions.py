# SPDX-License-Identifier: Apache-2.0
"""Enlarge the last partition of a disk (`sfdisk`)."""

import shutil
from pathlib import Path

from containerhost.linux.run import confined
from containerhost.linux.storage.growth import WORTH, length
from lxdone.disk.filesystems import partitions
from onedriver.errors import DriverError, NotSupported
from onedriver.node.programs import run

PRIMARY = 4  # maximum number of partitions of an MBR


def stretch(disk: Path, start: int, timeout: int) -> None:
    """Enlarge the last partition of an unused disk to the disk's end.

    :raises NotSupported: it cannot be enlarged
    """
    reason = unstretchable(disk, start)
    if reason:
        raise NotSupported(f"disk {disk} {reason}")
    part = next(part for part in partitions(disk) if part.start == start)
    command = [*confined(timeout), "sfdisk", "--quiet", "--no-reread", "--no-tell-kernel"]
    problem = f"partition {part.number} of disk {disk} cannot grow"
    if part.scheme == "gpt":  # the second table is at the end of the disk
        run([*command, "--relocate", "gpt-bak-std", str(disk)], timeout, problem)
    run([*command, "-N", str(part.number), str(disk)], timeout, problem, input=", +\n")
    now = next((now for now in partitions(disk) if now.number == part.number), part)
    if now.start != start or now.size < part.size:
        raise DriverError(f"{problem}: sfdisk made {part} of it {now}")


def too_small(disk: Path, start: int, size: int) -> str | None:
    """Return why a partition's file system cannot grow with its disk to ``size`` bytes; None if it can, or need not."""
    end = max(part.start + part.size for part in partitions(disk))
    return unstretchable(disk, start) if max(size, length(disk)) - end > 2 * WORTH else None


def unstretchable(disk: Path, start: int) -> str | None:
    """Return why a partition cannot be enlarged to the end of its disk; None if it can."""
    found = partitions(disk)
    part = next(part for part in found if part.start == start)
    if part != max(found, key=lambda one: one.start):
        return f"has a partition after partition {part.number}, which cannot grow therefore"
    if part.scheme == "dos" and part.number > PRIMARY:
        return f"has its partition {part.number} within another, where it does not grow"
    if shutil.which("sfdisk") is None:
        return f"has a partition {part.number} that this node has no sfdisk to enlarge with: install fdisk"
    return None
