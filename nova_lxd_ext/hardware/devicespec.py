# SPDX-License-Identifier: Apache-2.0
"""Read what ``[pci]device_spec`` says of a device.

Nova hands out a device with the tag ``one_time_use`` once: it reserves it in Placement when a server gets it, and
somebody outside nova frees it once it is clean. The reservation is lost with the device's provider, and that goes with
a device that is not reported. So one stays reported as long as it is in the machine, whatever its health: at worst a
boot fails on it, and it is reserved then.
"""

from collections.abc import Mapping
from typing import Any

import nova.conf
from nova.pci import whitelist

CONF = nova.conf.CONF


def tags(entry: Mapping[str, Any]) -> Mapping[str, str] | None:
    """Return the tags of the first specification that the device matches; None when nova ignores the device.

    :param entry: a device as nova is told of it (:func:`nova_lxd_ext.hardware.pci.passthrough`)
    """
    spec = whitelist.Whitelist(CONF.pci.device_spec).device_assignable(dict(entry))
    return None if spec is None else spec.get_tags()


def one_time_use(entry: Mapping[str, Any]) -> bool:
    """Return whether nova hands out a device once, of which it is told ``entry``."""
    return (tags(entry) or {}).get("one_time_use") == "true"
