# SPDX-License-Identifier: Apache-2.0
"""Report the allocation of a device, and the operator's remedy for a blocked one."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from containerhost.allocation.states import State
from containerhost.allocation.store import Allocation


def row(device_id: str, records: Mapping[str, Allocation] | None) -> dict[str, Any]:
    """Return a device's allocation as JSON values.

    :param records: None if they cannot be read: then the state is None, not free
    """
    record = (records or {}).get(device_id)
    if record is None:
        free = None if records is None else State.FREE
        return {"state": free, "owner": None, "since": None, "blocked": None, "remedy": None}
    return {"state": record.state, "owner": dataclasses.asdict(record.consumer), "since": record.since,
            "blocked": record.blocked, "remedy": remedy(record) if record.state is State.BLOCKED else None}


def remedy(record: Allocation, present: bool = True) -> str:
    """Return the operator's remedy for a blocked device.

    :param present: whether this host has the device; one that is missing cannot be cleaned
    """
    unblock = f"`containerhost unblock {record.device_id}`"
    if not present:
        return f"if it does not come back, or was cleaned elsewhere, free it: {unblock}"
    if record.holders and not record.ended:
        return (f"stop the container, and it is cleaned and freed by itself; or end what uses it, then clean and free "
                f"it: `containerhost scrub {record.device_id}`; or free it after you cleaned it by hand: {unblock}")
    return (f"remove the cause, then clean and free it: `containerhost scrub {record.device_id}`; or free it after you "
            f"cleaned it by hand: {unblock}")
