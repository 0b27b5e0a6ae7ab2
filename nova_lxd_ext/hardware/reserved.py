# SPDX-License-Identifier: Apache-2.0
"""Reserve in Placement functions that nova must not allocate now, with the reason as a trait. Pure.

Nova's PCI tracker knows only available functions, and nova reports only these to Placement. So this driver adds a
provider below the host for each card with reserved functions, in addition to nova's own for the card's other
functions. It is removed when the card has no reserved function; nothing can be allocated from it.
"""

import collections
from collections.abc import Iterable

from nova.compute.pci_placement_translator import get_resource_class
from nova.compute.provider_tree import ProviderTree

from nova_lxd_ext import providertree
from nova_lxd_ext.hardware import devicespec
from nova_lxd_ext.hardware.pci import Reserved


def provider_name(nodename: str, card: str) -> str:
    return f"{nodename}_reserved_{card}"


def update(tree: ProviderTree, nodename: str, found: Iterable[Reserved]) -> None:
    """Write the inventory that nova would have of ``found`` into ``tree``, as reserved."""
    totals, traits = _by_provider(nodename, found)
    for name, counts in totals.items():
        if not tree.exists(name):
            tree.new_child(name, nodename)
        tree.update_inventory(name, {item: providertree.entry(total, reserved=total) for item, total in counts.items()})
        tree.update_traits(name, traits[name])
    for name in providertree.names(tree, nodename, provider_name(nodename, "")) - totals.keys():
        tree.remove(name)


def _by_provider(nodename: str, found: Iterable[Reserved],
                 ) -> tuple[dict[str, collections.Counter[str]], dict[str, set[str]]]:
    """Group functions by resource class, and traits, by provider."""
    totals: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    traits: dict[str, set[str]] = collections.defaultdict(set)
    for device, entry, reason in found:
        tags = devicespec.tags(entry)
        # Functions with a physical network are used by Neutron's ports, and nova does not count them in Placement. Nova
        # itself keeps devices for one-time use reserved.
        if tags is None or tags.get("physical_network") or devicespec.one_time_use(entry):
            continue
        name = provider_name(nodename, device.parent or device.address)
        totals[name][get_resource_class(tags.get("resource_class"), device.vendor_id, device.product_id)] += 1
        traits[name].add(str(reason))
    return totals, traits
