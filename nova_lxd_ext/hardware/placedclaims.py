# SPDX-License-Identifier: Apache-2.0
"""Make claims of PCI devices follow Placement's allocations.

With PCI devices in Placement the scheduler allocates the provider of a device, and nova's PCI tracker takes that
device if the request names it (``rp_uuids``). nova names it only in the requests of a boot: a claim for a resize, a
cold migration or an evacuation makes new requests from the flavor (nova.compute.resource_tracker, ``_move_claim``),
and an unshelve uses requests whose ids have changed with a resize since. The tracker then takes any device of the
kind. See doc/source/upstream.md.
"""

import collections
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import nova.conf
import os_traits
from nova import context as nova_context
from nova import exception, objects
from nova.compute import claims, pci_placement_translator, task_states, vm_states

from nova_lxd_ext.hardware.pcitracker import HELD

MOVING = (task_states.RESIZE_PREP, task_states.RESIZE_MIGRATING, task_states.RESIZE_MIGRATED, task_states.RESIZE_FINISH,
          task_states.RESIZE_REVERTING)
UNCLAIMED = ("accepted", "pre-migrating")  # nova's migration states before the first request has ended


class Unit(NamedTuple):
    """Hold the resource class and traits that one device of a PCI request must have."""

    resource_class: str
    traits: frozenset[str]


class Allocated(NamedTuple):
    """Identify one device that Placement allocated."""

    provider: str
    resource_class: str
    traits: frozenset[str]


def follow_placement(claim: claims.Claim, requests: Sequence[objects.InstancePCIRequest]) -> None:
    """Make a claim take the devices that Placement allocated to the server on this host.

    The caller holds the lock of nova's ResourceTracker.

    :param claim: of a move or an unshelve; others are unchanged
    :param requests: of the claim; changed in place
    :raises ComputeResourcesUnavailable: the allocated devices do not match the requests
    """
    if claim.migration is not None or claim.instance.vm_state == vm_states.SHELVED_OFFLOADED:
        name_providers(claim.context, claim.instance, claim.tracker, claim.nodename, requests)


def name_providers(context: Any, instance: objects.Instance, tracker: Any, nodename: str,
                   requests: Sequence[objects.InstancePCIRequest]) -> None:
    """Name in PCI requests the providers that Placement allocated to the server on this host.

    Does nothing if the scheduler allocates no PCI devices: then the tracker chooses, and nova allocates its choice.

    :param tracker: nova's ResourceTracker
    :param requests: changed in place
    :raises ComputeResourcesUnavailable: the allocated devices do not match the requests
    """
    of_flavor = [request for request in requests if request.source == objects.InstancePCIRequest.FLAVOR_ALIAS]
    if not nova.conf.CONF.pci.report_in_placement or not of_flavor:
        return
    found = tracker.reportclient.get_allocs_for_consumer(context, instance.uuid)["allocations"]
    allocated = _on_this_host(found, tracker.provider_tree, nodename)
    units = [_unit(request.spec[0]) for request in of_flavor]
    chosen = assign([unit for unit, request in zip(units, of_flavor, strict=True) for _ in range(request.count)],
                    allocated) if allocated else ()
    if chosen is None:
        raise exception.ComputeResourcesUnavailable(reason=(
            f"Placement allocated {_words(allocated)} to server {instance.uuid} on {nodename}, its flavor asks for "
            f"{_words(units)}: compare `openstack resource provider allocation show {instance.uuid}` with the flavor's "
            "pci_passthrough:alias"))
    rest = iter(chosen)
    for request in of_flavor:
        for spec in request.spec:
            spec.pop("rp_uuids", None)  # from an earlier host
        if allocated:
            request.spec[0]["rp_uuids"] = ",".join(next(rest) for _ in range(request.count))


def moving(tracker: Any, host: str) -> list[str]:
    """Return the uuids of the servers with PCI devices on this host whose allocations nova is about to change.

    A move's allocations belong to the server before nova's PCI tracker knows of the move, and after it has forgotten
    it in a revert: in between nova would add the device of the other size permanently, or fail to start because the
    move holds it. The task state always shows it, except for a move that nova-compute's start interrupts before its
    claim: nova then clears the task state, and the move keeps its allocations."""
    holders = {device.instance_uuid for device in tracker.pci_devs if device.status in HELD}
    if not holders or not nova.conf.CONF.pci.report_in_placement:
        return []
    context = nova_context.get_admin_context()
    found = objects.InstanceList.get_by_filters(context, {"uuid": list(holders), "task_state": list(MOVING)},
                                                expected_attrs=[])
    # A server that comes holds devices after its claim, before which nova has recorded its destination.
    unclaimed = objects.MigrationList.get_by_filters(context, {"status": list(UNCLAIMED), "host": host})
    return sorted({instance.uuid for instance in found} | (holders & {move.instance_uuid for move in unclaimed}))


def assign(units: Sequence[Unit], allocated: Sequence[Allocated]) -> tuple[str, ...] | None:
    """Return for each unit the provider of an allocated device that satisfies it; None if there is no assignment.

    Placement's answer does not assign devices to requests. Augmenting paths (Kuhn): a device taken by an
    earlier unit is passed on if that unit can have another.
    """
    taken: dict[int, int] = {}  # device -> unit

    def take(unit: int, tried: set[int]) -> bool:
        for device, offer in enumerate(allocated):
            if device in tried or offer.resource_class != units[unit].resource_class or not (
                    units[unit].traits <= offer.traits):
                continue
            tried.add(device)
            if device not in taken or take(taken[device], tried):
                taken[device] = unit
                return True
        return False

    if not all(take(unit, set()) for unit in range(len(units))):
        return None
    chosen = {unit: allocated[device].provider for device, unit in taken.items()}
    return tuple(chosen[unit] for unit in range(len(units)))


def _on_this_host(allocations: Mapping[str, Any], tree: Any, nodename: str) -> list[Allocated]:
    """Return this host's PCI devices among a consumer's allocations; an evacuation also has the old host's."""
    found = []
    here = set(tree.get_provider_uuids_in_tree(nodename))
    for provider in sorted(here & allocations.keys()):
        if tree.has_traits(provider, [os_traits.COMPUTE_MANAGED_PCI_DEVICE]):
            traits = frozenset(tree.data(provider).traits)
            for resource_class, count in sorted(allocations[provider]["resources"].items()):
                found += [Allocated(provider, resource_class, traits)] * count
    return found


def _unit(spec: Mapping[str, str]) -> Unit:
    """Return one unit of a request as nova requests it from Placement.

    Source: nova.objects.RequestSpec.generate_request_groups_from_pci_requests."""
    return Unit(
        pci_placement_translator.get_resource_class(spec.get("resource_class"), spec.get("vendor_id", ""),
                                                    spec.get("product_id", "")),
        frozenset(pci_placement_translator.get_traits(spec.get("traits", ""))))


def _words(devices: Sequence[Unit | Allocated]) -> str:
    counts = collections.Counter(device.resource_class for device in devices)
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items())) or "no PCI device"
