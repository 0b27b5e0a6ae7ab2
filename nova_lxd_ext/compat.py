# SPDX-License-Identifier: Apache-2.0
"""Hide private interfaces of nova, and differences between its releases. No other module does."""

import functools
import inspect
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

from nova import context as nova_context
from nova import objects
from nova.compute import build_results, claims, pci_placement_translator
from nova.compute import utils as compute_utils
from nova.objects.fields import PciDeviceStatus
from nova.virt.driver import ComputeDriver

from nova_lxd_ext.hardware.pcitracker import HELD


def manager(virtapi: Any) -> Any:
    """Return nova's ComputeManager; None in tests."""
    return getattr(virtapi, "_compute", None)


def pci_tracker(virtapi: Any) -> Any:
    """Return nova's PciDevTracker; None before nova-compute's first update of its resources, and in tests."""
    found = manager(virtapi)
    return found.rt.pci_tracker if found is not None else None


def pci_devices(virtapi: Any, instance: objects.Instance) -> objects.PciDeviceList:
    """Return the devices of this host that are claimed for, or allocated to, a server.

    Nova's own query (``PciDeviceList.get_by_instance_uuid``) returns only allocated ones."""
    tracker = pci_tracker(virtapi)
    return objects.PciDeviceList(objects=[
        device for device in (tracker.pci_devs if tracker is not None else ())
        if device.instance_uuid == instance.uuid and device.status in HELD])


def allocate_claimed(virtapi: Any, context: Any, instance: objects.Instance) -> None:
    """Allocate the devices claimed for a server that has arrived by a live migration.

    Nova claims those of flavor and ports one after the other, and its tracker knows only the last claim."""
    found = manager(virtapi)
    claimed = [device for device in pci_devices(virtapi, instance) if device.status == PciDeviceStatus.CLAIMED]
    if claimed:
        found.rt.pci_tracker.claims[instance.uuid] = claimed
        found.rt.allocate_pci_devices_for_instance(context, instance)


def volumes_before(post_live_migration: Any) -> objects.BlockDeviceMappingList:
    """Return the server's volumes as attached on the source of its live migration.

    :param post_live_migration: nova's callback that ends it (functools.partial)
    """
    return post_live_migration.keywords["source_bdms"]


def process_instances_at_startup(host: str, process: Callable[[Any, objects.InstanceList], Any]) -> None:
    """Process the host's servers at startup on nova 33, which nova 34 does itself before it uses them."""
    if hasattr(ComputeDriver, "process_instances_at_startup"):
        return
    context = nova_context.get_admin_context()
    process(context, objects.InstanceList.get_by_host(
        context, host, expected_attrs=["info_cache", "metadata", "system_metadata", "flavor"]))


def before_claims(prepare: Callable[[claims.Claim, list[objects.InstancePCIRequest]], None],
                  record_failure: Callable[[Any, objects.Instance], AbstractContextManager[None]]) -> None:
    """Call ``prepare`` with each claim and its PCI requests before nova tests them and takes devices.

    Idempotent. nova calls no driver between an allocation in Placement and the claim, and no public method of its
    tracker has the requests of a move.

    :param record_failure: returns the context manager around ``prepare`` and nova's test
    """
    original = claims.Claim._claim_test
    if getattr(original, "prepares", False):
        return

    @functools.wraps(original)
    def claim_test(claim: claims.Claim, *args: Any, **kwargs: Any) -> None:
        with record_failure(claim.context, claim.instance):
            prepare(claim, claim._pci_requests.requests if claim._pci_requests else [])
            original(claim, *args, **kwargs)

    claim_test.prepares = True  # type: ignore[attr-defined]
    claims.Claim._claim_test = claim_test


def leave_allocations_of(moving: Callable[[Any, str], Iterable[str]]) -> None:
    """Keep nova's update of resources from changing the PCI allocations of some servers.

    Idempotent. Nova itself skips servers that it knows to be resized on this host, from the claim on.

    :param moving: returns the uuids of further such servers, from nova's PciDevTracker and the host's name; called
        after nova has read the allocations
    """
    original = pci_placement_translator.update_provider_tree_for_pci
    if getattr(original, "leaves", False):
        return
    signature = inspect.signature(original)

    @functools.wraps(original)
    def update(*args: Any, **kwargs: Any) -> bool:
        given = signature.bind(*args, **kwargs)
        left = given.arguments["instances_under_same_host_resize"]
        further = moving(given.arguments["pci_tracker"], given.arguments["nodename"])
        given.arguments["instances_under_same_host_resize"] = [*left, *further]
        return bool(original(*given.args, **given.kwargs))

    update.leaves = True  # type: ignore[attr-defined]
    pci_placement_translator.update_provider_tree_for_pci = update


def keep_allocations_of_rebuilds(virtapi: Any) -> None:
    """Keep a server's allocations when a rebuild on its host fails.

    nova-compute deletes them as for an evacuation, where the server is still on another host
    (ComputeManager.rebuild_instance). The next rebuild, or a hard reboot, would restore the server without them.
    """
    found = manager(virtapi)
    if found is None:
        return
    original = found.rt.delete_allocation_for_evacuated_instance

    @functools.wraps(original)
    def delete(context: Any, instance: objects.Instance, node: str, **more: Any) -> None:
        if instance.node != node:
            original(context, instance, node, **more)

    found.rt.delete_allocation_for_evacuated_instance = delete


def keep_reason_of_last_host(virtapi: Any) -> None:
    """End a boot in nova-compute if no other host is left, so that the server's fault has this host's reason.

    nova-compute returns every refused boot to the conductor. If the scheduler selected no other host, the conductor
    replaces the reason by "Exhausted all hosts available for retrying build failures". Without ``retry``, as with
    ``[scheduler]max_attempts = 1``, nova-compute ends the boot itself; unlike the conductor, it keeps the
    accelerator requests, and after a violated server group the allocations.
    """
    found = manager(virtapi)
    if found is None:
        return
    original = found._do_build_and_run_instance
    signature = inspect.signature(original)

    @functools.wraps(original)
    def build(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs).arguments
        last = given.get("host_list") == [] and given["filter_properties"].pop("retry", None)
        result = original(*args, **kwargs)
        if last and result in (build_results.FAILED, build_results.FAILED_BY_POLICY):
            context, instance = given["context"], given["instance"]
            if result == build_results.FAILED_BY_POLICY:
                found.reportclient.delete_allocation_for_instance(context, instance.uuid, force=True)
            compute_utils.delete_arqs_if_needed(
                context, instance, [port.arq_uuid for port in given["requested_networks"] or () if port.arq_uuid])
        return result

    found._do_build_and_run_instance = build
