# SPDX-License-Identifier: Apache-2.0
"""Start a driver's ``reconcile`` from the rounds of monitoring if it has work."""

import sys
from collections.abc import Callable

from containerhost.engines.contract import Containers, ContainerState
from containerhost.linux.run import detached


def containers(driver: str, engine: Containers, has_work: Callable[[tuple[ContainerState, ...]], object]
               ) -> tuple[ContainerState, ...]:
    """Return the containers, and start reconciling if there is work.

    :param has_work: returns whether there is work, given all containers
    """
    found = engine.containers()
    if has_work(found):
        start_reconciling(driver)
    return found


def start_reconciling(driver: str) -> None:
    """Start a background process, because cleaning is slow; a concurrent one skips the locked VMs."""
    detached([sys.executable, "-m", driver, "reconcile"])
