# SPDX-License-Identifier: Apache-2.0
"""Bind the memory of this process and its children to NUMA nodes: Python lacks set_mempolicy(2)."""

import ctypes
import os
import platform
from collections.abc import Collection

from containerhost.errors import HostActionFailed

CALLS = {"x86_64": 238, "aarch64": 237}  # of set_mempolicy(2)
BIND = 2  # MPOL_BIND, linux/mempolicy.h
BITS = 8 * ctypes.sizeof(ctypes.c_ulong)

_libc = ctypes.CDLL(None, use_errno=True)


def bind(nodes: Collection[int]) -> None:
    """Bind the memory of the calling thread, and of its children, to these nodes.

    :param nodes: none changes nothing
    :raises HostActionFailed: the kernel refuses
    """
    if not nodes:
        return
    words = (ctypes.c_ulong * (max(nodes) // BITS + 1))()
    for node in nodes:
        words[node // BITS] |= 1 << node % BITS
    # The kernel reads one bit less than it is told.
    if _libc.syscall(CALLS[platform.machine()], BIND, words, len(words) * BITS + 1):
        raise HostActionFailed(f"memory cannot be bound to NUMA nodes {', '.join(map(str, sorted(nodes)))}: "
                               f"{os.strerror(ctypes.get_errno())}")
