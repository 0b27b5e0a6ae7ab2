# SPDX-License-Identifier: Apache-2.0
"""Weigh hosts for nova-scheduler so that a resized server stays on its host if it fits, for a live resize."""

from nova import objects
from nova.scheduler import host_manager, utils, weights

from nova_lxd_ext.conf import CONF


class OwnHostWeigher(weights.BaseHostWeigher):
    """Prefer the present host of the server.

    A new server has none, and if a server must leave its host (cold and live migration, evacuation), nova excludes
    that host."""

    def weight_multiplier(self, host_state: host_manager.HostState) -> float:
        """Return the weight's multiplier, which a host aggregate can override by a property of the option's name."""
        return float(utils.get_weight_multiplier(host_state, "own_host_weight_multiplier",
                                                 CONF.lxd.own_host_weight_multiplier))

    def _weigh_object(self, host_state: host_manager.HostState, weight_properties: objects.RequestSpec) -> float:
        return float(weight_properties.instance_uuid in host_state.instances)
