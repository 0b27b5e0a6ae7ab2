# SPDX-License-Identifier: Apache-2.0
"""Limit the rates of an existing VM's NIC (``onevm nic-update``).

oned calls no script of the VMM driver for this, but ``update_nic`` of the network driver, which calls ``set_qos`` of
the class of NICs that :mod:`onedriver.setup.networkdrivers` registers. That runs the driver's command ``vmm limit_nic``
with the deploy id, NIC_ID, and INBOUND_AVG_BW and OUTBOUND_AVG_BW in KB/s, of which 0 is no limit.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

from onedriver.errors import BadInput

ACTION = "limit_nic"
TIMEOUT = 60  # s to wait for another action of the VM: the network driver holds a lock of the node meanwhile
DEPLOY_ID = re.compile(r"one-([0-9]{1,9})")
NUMBER = re.compile(r"[0-9]{1,12}")
KILOBYTE = 1000  # bytes, in OpenNebula's bandwidth attributes


class NicLimits(NamedTuple):
    """Hold the receive and transmit limits of a VM's NIC in bytes per second; None is no limit."""

    vm_id: int
    nic_id: int
    received: int | None
    sent: int | None


def parsed(argv: Sequence[str]) -> NicLimits:
    """Parse the arguments of the command; raise BadInput on a wrong number of them, or on non-numbers."""
    vm = DEPLOY_ID.fullmatch(argv[0]) if len(argv) == 4 else None
    if vm is None or not all(map(NUMBER.fullmatch, argv[1:])):
        raise BadInput(f"{ACTION} takes one-VM NIC_ID and the KB/s that it may receive and send, 0 for no limit, but "
                       f"was called with {' '.join(argv)[:200]!r}")
    nic_id, received, sent = map(int, argv[1:])
    return NicLimits(int(vm[1]), nic_id, received * KILOBYTE or None, sent * KILOBYTE or None)
