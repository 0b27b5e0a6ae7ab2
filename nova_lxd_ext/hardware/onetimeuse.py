# SPDX-License-Identifier: Apache-2.0
"""Track devices that nova hands out once (``[pci]device_spec`` with ``one_time_use``): whose reservation must survive.

Nova reserves such a device in Placement when a server gets it, and somebody outside nova frees it once it is clean. The
reservation is lost with the device's provider, and that goes with a device that is not reported. So one stays reported
as long as it is in the machine, whatever its health: at worst a boot fails on it, and it is reserved then.
"""

from collections.abc import Mapping
from typing import Any

from nova_lxd_ext.hardware import devicespec


def one_time_use(entry: Mapping[str, Any]) -> bool:
    """Return whether nova hands out a device once.

    :param entry: a device as nova is told of it (:func:`nova_lxd_ext.hardware.pci.passthrough`)
    """
    return tagged(devicespec.tags(entry) or {})


def tagged(tags: Mapping[str, str]) -> bool:
    """Return whether the tags of a device say that it is for one use.

    :param tags: what ``[pci]device_spec`` says of a device
    """
    return tags.get("one_time_use") == "true"
