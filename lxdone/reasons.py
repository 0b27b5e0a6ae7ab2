# SPDX-License-Identifier: Apache-2.0
"""Add remedies to errors of LXD that name only the failed operation."""

import contextlib
from collections.abc import Iterator

from containerhost.engines.spec import ContainerSpec
from containerhost.errors import EngineError
from onedriver.errors import DriverError
from onedriver.vm import MIB, Vm

#: What LXD says on btrfs and ZFS when it copies an image into a root, or shifts the owners of its files.
QUOTA_EXCEEDED = ("Disk quota exceeded", "Failed to change ownership")
#: What LXD says when the kernel does not let it limit an interface.
NOT_LIMITED = ("tc qdisc", "tc class", "tc filter")
MODULES = "sch_htb sch_ingress cls_u32 act_police"


@contextlib.contextmanager
def naming_size(vm: Vm, spec: ContainerSpec) -> Iterator[None]:
    """Raise DriverError with SIZE if LXD reports, by its storage pool's message, that the root's quota is too small."""
    try:
        yield
    except EngineError as error:
        if spec.root.size is None or not any(words in str(error) for words in QUOTA_EXCEEDED):
            raise
        raise DriverError(f"the root may have {spec.root.size // MIB} MiB, too little for its content: give disk "
                          f"{vm.root.id} a larger SIZE ({error})") from error


@contextlib.contextmanager
def naming_limits() -> Iterator[None]:
    """Raise DriverError with the kernel's missing feature if LXD cannot limit an interface."""
    try:
        yield
    except EngineError as error:
        if not any(words in str(error) for words in NOT_LIMITED):
            raise
        raise DriverError(f"run `modprobe -a {MODULES}`, or remove INBOUND_AVG_BW and OUTBOUND_AVG_BW: LXD cannot "
                          f"limit a NIC ({error})") from error
