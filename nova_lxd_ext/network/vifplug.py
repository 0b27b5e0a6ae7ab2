# SPDX-License-Identifier: Apache-2.0
"""Plug host ends into the switch with os-vif, as all of nova's drivers do."""

from collections.abc import Callable
from typing import Any

import os_vif
from nova.network import model
from os_vif.exception import ExceptionBase
from os_vif.objects.instance_info import InstanceInfo

from containerhost.engines.network.veth import Veths
from containerhost.errors import HostActionFailed
from nova_lxd_ext.network import vifconfig
from nova_lxd_ext.network.vifconfig import Kind


class Plugs:
    """Plug ports' host ends into the switch, and unplug them."""

    def __init__(self, veths: Veths) -> None:
        self._veths = veths
        os_vif.initialize()  # needed by the benchmarks; nova-compute has initialized it

    def plug(self, server: InstanceInfo, vif: model.VIF) -> None:
        """Connect the existing host end. Idempotent.

        :raises HostActionFailed: with os-vif's message
        """
        ask(os_vif.plug, server, vif)
        if vifconfig.kind(vif) is Kind.HYBRID:
            self._veths.join(vifconfig.host_end(vif), vifconfig.hybrid_bridge(vif))

    def unplug(self, server: InstanceInfo, vif: model.VIF) -> None:
        """Disconnect the host end. Idempotent."""
        ask(os_vif.unplug, server, vif)


def ask(act: Callable[[Any, InstanceInfo], None], server: InstanceInfo, vif: model.VIF) -> None:
    plugged = vifconfig.osvif(vif)
    if plugged is None:
        return
    try:
        act(plugged, server)
    except ExceptionBase as error:
        raise HostActionFailed(
            f"os-vif could not {act.__name__} port {vif['id']} ({vifconfig.host_end(vif)}); its message: {error}. Is "
            f"ovsdb-server running, and does [os_vif_ovs]ovsdb_connection point to it?") from error
