# SPDX-License-Identifier: Apache-2.0
"""Read the properties of a device in ``[pci]device_spec``.

Nova allocates a device with the tag ``one_time_use`` once: it reserves it in Placement when a server gets it, and an
external service frees it once it is clean. The reservation is lost with the device's provider, which is removed with
a device that is not reported. So such a device stays reported as long as it is in the machine, whatever its health:
at worst a boot fails on it, and it is reserved again.
"""

from collections.abc import Mapping
from typing import Any

import nova.conf
from nova.pci import whitelist

CONF = nova.conf.CONF


def tags(entry: Mapping[str, Any]) -> Mapping[str, str] | None:
    """Return the tags of the first specification that matches the device; None if nova ignores it.

    :param entry: a device as reported to nova (:func:`nova_lxd_ext.hardware.pci.passthrough`)
    """
    spec = whitelist.Whitelist(CONF.pci.device_spec).device_assignable(dict(entry))
    return None if spec is None else spec.get_tags()


def one_time_use(entry: Mapping[str, Any]) -> bool:
    """Return whether nova allocates the device of ``entry`` only once."""
    return (tags(entry) or {}).get("one_time_use") == "true"
