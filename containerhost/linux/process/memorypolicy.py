# SPDX-License-Identifier: Apache-2.0
"""Bind the memory of this process and its children to NUMA nodes: Python lacks set_mempolicy(2)."""

import ctypes
import os
import platform
from collections.abc import Collection

from containerhost.errors import HostActionFailed

# Numbers of set_mempolicy(2) in the kernel's tables of system calls.
CALLS = {"x86_64": 238, "aarch64": 237, "riscv64": 237, "loongarch64": 237, "ppc64le": 261, "s390x": 270}
BIND = 2  # MPOL_BIND, linux/mempolicy.h
BITS = 8 * ctypes.sizeof(ctypes.c_ulong)

_libc = ctypes.CDLL(None, use_errno=True)


def bind(nodes: Collection[int]) -> None:
    """Bind the memory of the calling thread, and of its children, to these nodes.

    :param nodes: none changes nothing
    :raises HostActionFailed: the kernel refuses, or this architecture's number of the call is unknown
    """
    if not nodes:
        return
    number = CALLS.get(platform.machine())
    if number is None:
        raise HostActionFailed(f"memory cannot be bound to NUMA nodes on {platform.machine()}: the number of "
                               "set_mempolicy(2) is unknown")
    words = (ctypes.c_ulong * (max(nodes) // BITS + 1))()
    for node in nodes:
        words[node // BITS] |= 1 << node % BITS
    # The kernel reads one bit less than it is told.
    if _libc.syscall(number, BIND, words, len(words) * BITS + 1):
        raise HostActionFailed(f"memory cannot be bound to NUMA nodes {', '.join(map(str, sorted(nodes)))}: "
                               f"{os.strerror(ctypes.get_errno())}")
