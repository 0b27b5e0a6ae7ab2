# SPDX-License-Identifier: Apache-2.0
"""Translate Placement's allocations of slices to slices of this host."""

import collections
from collections.abc import Callable, Mapping
from typing import Any

from nova import context as nova_context
from nova import objects
from nova.scheduler.client import report

from containerhost.allocation.store import AllocationStore, Consumer
from containerhost.errors import DeviceNotFound
from containerhost.inventory.scan import HostView
from nova_lxd_ext.hardware import sliceproviders, slices


class Placement:
    """Read allocations from Placement: those of one server, and those against one resource provider.

    :param client: nova's own client; created at the first request, because it looks up the service's address
    """

    def __init__(self, client: Callable[[], Any] = report.report_client_singleton) -> None:
        self._client = client

    def of_server(self, uuid: str) -> Mapping[str, Any]:
        """Return a server's allocations by uuid of the provider.

        :raises ConsumerAllocationRetrievalFailed: Placement does not return them
        """
        return self._client().get_allocs_for_consumer(nova_context.get_admin_context(), uuid)["allocations"]

    def used(self, provider_uuid: str) -> Mapping[str, int]:
        """Return the total usage of a provider by resource class."""
        found: collections.Counter[str] = collections.Counter()
        info = self._client().get_allocations_for_resource_provider(nova_context.get_admin_context(), provider_uuid)
        for allocation in info.allocations.values():
            found.update(allocation["resources"])
        return found


class HostSlices:
    """Determine the slices of this host that servers have, are allocated and could have."""

    def __init__(self, nodename: str, store: AllocationStore, placement: Placement) -> None:
        self._nodename = nodename
        self._store = store
        self._placement = placement

    def of(self, instance: objects.Instance, consumer: Consumer, allocations: Mapping[str, Any],
           view: HostView) -> tuple[str, ...]:
        """Return the ids of a server's slices: those it holds, or those allocated in Placement.

        The host is only read for a server whose flavor requests slices.

        :param allocations: as passed by nova; empty if it passes none (start, reboot, revert of a resize)
        :raises DeviceHeld: there are fewer free slices than Placement counts
        :raises DeviceNotFound: the flavor requests other slices than Placement allocated on this host
        """
        asked = sliceproviders.asked(instance.flavor.extra_specs)
        if not asked:
            return ()
        inventory, records = view.inventory, self._store.records()
        held = slices.held(records, consumer)
        if not allocations and slices.satisfy(held, asked, inventory):
            return held
        needs = sliceproviders.needs(allocations or self._placement.of_server(instance.uuid), self._nodename, inventory)
        given = sliceproviders.total(needs)
        if given != asked:
            raise DeviceNotFound(
                f"the flavor requests {_words(asked)}, Placement allocated {_words(given)} on this host: compare "
                f"`openstack resource provider allocation show {instance.uuid}` with `containerhost list`")
        return slices.choose(needs, inventory, records, consumer)

    def allocations(self, flavor: objects.Flavor, consumer: str) -> Mapping[str, Any]:
        """Return Placement's allocations of a server or a migration, by its uuid; none for a flavor without slices."""
        return self._placement.of_server(consumer) if sliceproviders.asked(flavor.extra_specs) else {}


def _words(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} of {name}" for name, count in sorted(counts.items())) or "none"
