# SPDX-License-Identifier: Apache-2.0
"""Weigh hosts for nova-scheduler: a resized server stays on its host if it fits, to be resized while it runs."""

from nova import objects
from nova.scheduler import host_manager, utils, weights

from nova_lxd_ext.conf import CONF


class OwnHostWeigher(weights.BaseHostWeigher):
    """Prefer the host that the server is on.

    A new server is on none, and where it must leave its host (cold and live migration, evacuation) nova leaves that one
    out."""

    def weight_multiplier(self, host_state: host_manager.HostState) -> float:
        """Return the weight's multiplier, also per host aggregate, by a property of the option's name."""
        return float(utils.get_weight_multiplier(host_state, "own_host_weight_multiplier",
                                                 CONF.lxd.own_host_weight_multiplier))

    def _weigh_object(self, host_state: host_manager.HostState, weight_properties: objects.RequestSpec) -> float:
        return float(weight_properties.instance_uuid in host_state.instances)
