# SPDX-License-Identifier: Apache-2.0
"""Build the parts that allocate VMs' devices and memory, from the node's options, without contacting the engine."""

import functools
from collections.abc import Callable
from pathlib import Path

from containerhost.allocation.allocator import DeviceAllocator
from containerhost.allocation.sharedmemory import SharedMemories
from containerhost.allocation.store import AllocationStore
from containerhost.engines.contract import Containers
from containerhost.inventory.scan import HostView
from containerhost.privileged import Privileged
from onedriver.node.device_recovery import DeviceRecovery
from onedriver.node.options import NodeOptions


def memories(driver: str, options: NodeOptions, engine: Containers, root: Privileged) -> SharedMemories:
    return SharedMemories(Path(options.owners), driver, engine.name, root)


def allocator(driver: str, options: NodeOptions, engine: Containers, root: Privileged) -> DeviceAllocator:
    holders = memories(driver, options, engine, root).first_processes
    return DeviceAllocator(AllocationStore(Path(options.owners)), HostView, root, engine.held,
                           holders=functools.partial(holders, engine.pid))


def recovery(driver: str, options: NodeOptions, engine: Containers, root: Privileged,
             has_container: Callable[[int], bool]) -> DeviceRecovery:
    return DeviceRecovery(driver, engine.name, has_container, allocator(driver, options, engine, root),
                          memories(driver, options, engine, root), Path(options.state))
