# SPDX-License-Identifier: Apache-2.0
"""Weigh hosts for nova-scheduler by their free pairs: a GPU and a virtual function below one PCIe switch."""

from nova import objects
from nova.objects.fields import PciDeviceType
from nova.scheduler import host_manager, utils, weights

from nova_lxd_ext.conf import CONF
from nova_lxd_ext.host.resources import PAIRS


class PairWeigher(weights.BaseHostWeigher):
    """Prefer hosts with as many free pairs of GPU and VF as a server needs, or with few for one kind only.

    Nova's claim alone selects the server's devices on the host."""

    def weight_multiplier(self, host_state: host_manager.HostState) -> float:
        """Return the weight's multiplier, which a host aggregate can override by a property of the option's name."""
        return float(utils.get_weight_multiplier(host_state, "pair_weight_multiplier", CONF.lxd.pair_weight_multiplier))

    def _weigh_object(self, host_state: host_manager.HostState, weight_properties: objects.RequestSpec) -> float:
        gpus, functions = requested(weight_properties)
        found = str(host_state.stats.get(PAIRS, 0))
        free = int(found) if found.isascii() and found.isdigit() else 0
        if gpus and functions:
            return min(1.0, free / min(gpus, functions))
        return 1.0 / (1 + free) if gpus or functions else 0.0


def requested(spec: objects.RequestSpec) -> tuple[int, int]:
    """Return how many GPUs and virtual functions a server requests; devices other than VFs count as GPUs."""
    counts = {True: 0, False: 0}
    for request in spec.pci_requests.requests if spec.pci_requests else ():
        is_function = any(each.get("dev_type") == PciDeviceType.SRIOV_VF or "physical_network" in each
                          for each in request.spec)
        counts[is_function] += request.count
    return counts[False], counts[True]
