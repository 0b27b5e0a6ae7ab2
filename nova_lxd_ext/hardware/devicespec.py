# SPDX-License-Identifier: Apache-2.0
"""Read what ``[pci]device_spec`` says of a device."""

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
