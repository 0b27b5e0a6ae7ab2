"""What of a VM's changes is refused, the same with every engine. Pure."""

import re

from onedriver.errors import BadInput, DriverError

# LCM states (OpenNebula's VirtualMachine.h) in which a VM starts that ran before.
RESUMING = {19: "unknown", 20: "powered off", 21: "suspended", 22: "stopped", 32: "undeployed"}
SNAPSHOT_NUMBER = re.compile(r"[0-9]{1,9}")


def of_shrinking(name: str, size: int, used: int) -> None:
    """:param size, used: bytes"""
    if used > size:
        raise DriverError(f"container {name} uses {used >> 20} MiB of memory, more than the {size >> 20} MiB it is to "
                          "have; nothing was changed")


def snapshot_number(text: str) -> int:
    if not SNAPSHOT_NUMBER.fullmatch(text):
        raise BadInput(f"{text[:60]!r} is no snapshot of this driver")
    return int(text)
