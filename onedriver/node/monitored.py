# SPDX-License-Identifier: Apache-2.0
"""Start a driver's ``reconcile`` from the rounds of monitoring, where it has work."""

import sys
from collections.abc import Callable

from containerhost.engines.contract import Containers, ContainerState
from containerhost.linux.run import detached


def containers(driver: str, engine: Containers, has_work: Callable[[tuple[ContainerState, ...]], object]
               ) -> tuple[ContainerState, ...]:
    """Return the containers, and start reconciling if that has work.

    :param has_work: returns whether it has something to do, given all containers
    """
    found = engine.containers()
    if has_work(found):
        start_reconciling(driver)
    return found


def start_reconciling(driver: str) -> None:
    """Start a background process, as cleaning takes long; a second one finds the VMs locked and leaves them."""
    detached([sys.executable, "-m", driver, "reconcile"])
