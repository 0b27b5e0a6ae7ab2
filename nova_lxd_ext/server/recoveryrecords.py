# SPDX-License-Identifier: Apache-2.0
"""Read and write nova's records of servers with unfinished requests."""

import contextlib
from collections.abc import Iterator
from typing import Any

import oslo_messaging as messaging
from keystoneauth1 import exceptions as keystone
from nova import availability_zones, exception, objects
from nova.compute import utils as compute_utils
from nova.compute import vm_states
from nova.virt import hardware
from oslo_log import log as logging

from containerhost import errors
from nova_lxd_ext.server import instance_records, lostrequests
from nova_lxd_ext.server.lostrequests import Lost

LOG = logging.getLogger(__name__)

UNREADABLE = (exception.NovaException, messaging.MessagingException)  # also if the conductor lacks the API database


class Killed(exception.NovaException):
    """Report to a server's user a request that nova-compute did not finish."""

    msg_fmt = "nova-compute on %(host)s was killed during this request: %(outcome)s"


@contextlib.contextmanager
def log_errors(uuid: str, failed: set[str] | None = None) -> Iterator[None]:
    """Log an error of the block, so that nova-compute can manage the other servers.

    :param failed: collects ``uuid`` if the block fails
    :raises EngineUnavailable: ``failed`` is given: nova-compute cannot start without the engine, and restarts
    """
    try:
        yield
    except (exception.NovaException, errors.ContainerHostError, keystone.ClientException, messaging.MessagingException,
            OSError) as error:
        if failed is not None:
            if isinstance(error, errors.EngineUnavailable):
                raise
            failed.add(uuid)
        LOG.exception("The interrupted request could not be finished or undone; retried at the next start of "
                      "nova-compute", instance_uuid=uuid)


def record_outcome(context: Any, instance: objects.Instance, lost: Lost, outcome: str) -> None:
    """Record the outcome as the server's fault and as the end of the lost action, as the last step of a recovery.

    An ended action is not recovered again."""
    error = Killed(host=instance_records.host(), outcome=outcome)
    LOG.warning("%s", error, instance=instance)
    compute_utils.add_instance_fault_from_exc(context, instance, error)
    for method in lost.methods:
        objects.InstanceActionEvent.event_finish_with_failure(
            lost.context(instance), instance.uuid, f"{lostrequests.PREFIX}{method}", exc_val=error,
            exc_tb=str(error), want_result=False)


def fail(context: Any, instance: objects.Instance, lost: Lost, outcome: str) -> None:
    save(instance, vm_state=vm_states.ERROR, task_state=None)
    record_outcome(context, instance, lost, outcome)


def leave_host(instance: objects.Instance) -> None:
    save(instance, host=None, node=None, compute_id=None)


def save(instance: objects.Instance, **changes: Any) -> None:
    for name, value in changes.items():
        setattr(instance, name, value)
    instance.save()


def set_status(move: objects.Migration, status: str) -> None:
    move.status = status
    move.save()


def set_flavor(instance: objects.Instance, flavor: objects.Flavor) -> None:
    """Set the server's flavor as nova does, including the server's own columns for some values."""
    instance.instance_type_id = flavor.id
    instance.memory_mb, instance.vcpus = flavor.memory_mb, flavor.vcpus
    instance.root_gb, instance.ephemeral_gb = flavor.root_gb, flavor.ephemeral_gb
    instance.flavor = flavor


def is_under_way(instance: objects.Instance, move: objects.Migration) -> bool:
    """Return whether nova has this move in progress, not an earlier one."""
    context = instance.migration_context
    return context is not None and context.migration_id == move.id


def is_in_flight(context: Any, uuid: str) -> bool:
    """Return whether nova has a task for the server, which is not deleted."""
    try:
        return objects.Instance.get_by_uuid(context, uuid, expected_attrs=[]).task_state is not None
    except exception.InstanceNotFound:
        return False


def is_deleted(context: Any, uuid: str) -> bool:
    """Return whether nova records the server as deleted; False without a record."""
    try:
        return bool(objects.Instance.get_by_uuid(context.elevated(read_deleted="yes"), uuid, expected_attrs=[]).deleted)
    except exception.InstanceNotFound:
        return False


def has_resources(placement: Any, context: Any, host: str, uuid: str) -> bool:
    """Return whether the server has resources of this host in Placement.

    :raises keystone.ClientException, ConsumerAllocationRetrievalFailed: Placement does not tell
    """
    providers = placement.get_allocs_for_consumer(context, uuid)["allocations"]
    return any(node.uuid in providers for node in objects.ComputeNodeList.get_all_by_host(context, host))


def delete_allocation(placement: Any, context: Any, uuid: str, consumer_type: str = "migration") -> None:
    """Delete an allocation in Placement. Idempotent.

    :raises PlacementAPIConnectFailure: Placement does not answer, which nova's client only logs
    :raises AllocationDeleteFailed:
    """
    if placement.delete_allocation_for_instance(context, uuid, consumer_type=consumer_type, force=True) is None:
        raise exception.PlacementAPIConnectFailure


def move_allocation(placement: Any, context: Any, source: str, target: str) -> None:
    """Make an allocation another consumer's. Idempotent.

    :raises AllocationMoveFailed: it is unchanged; of some failures nova's client only logs the reason
    """
    if not placement.move_allocations(context, source, target):
        raise exception.AllocationMoveFailed(source_consumer=source, target_consumer=target,
                                             error="Placement did not do it; see the log")


def return_allocation(placement: Any, context: Any, instance: objects.Instance, move: objects.Migration) -> None:
    """Return a move's allocation, of the old size, to the server, or delete it if that has left the host. Idempotent.

    :raises keystone.ClientException, NovaException: Placement did not do it
    """
    if not placement.get_allocs_for_consumer(context, move.uuid)["allocations"]:
        return
    if instance.host == move.source_compute:
        move_allocation(placement, context, move.uuid, instance.uuid)
    else:
        delete_allocation(placement, context, move.uuid)


def request_spec(context: Any, instance: objects.Instance) -> objects.RequestSpec | None:
    """Return the server's request spec, for ports with guaranteed bandwidth; None without nova's API database."""
    try:
        return objects.RequestSpec.get_by_instance_uuid(context, instance.uuid)
    except UNREADABLE as error:
        LOG.warning("The server's scheduling cannot be read: %s", error, instance=instance)
        return None


def set_zone(context: Any, instance: objects.Instance, host: str) -> None:
    """Set the server's availability zone to that of ``host``, like nova's conductor, without saving."""
    try:
        instance.availability_zone = availability_zones.get_host_availability_zone(context, host)
    except UNREADABLE as error:
        LOG.warning("The availability zone of %s cannot be read: %s", host, error, instance=instance)


def resize_request_spec(context: Any, instance: objects.Instance) -> objects.RequestSpec | None:
    """Return the request spec with the server's flavor, as nova's API sets it at a revert.

    Otherwise an unshelving or an evacuation would schedule the size that was reverted."""
    spec = request_spec(context, instance)
    if spec is not None and spec.flavor.flavorid != instance.flavor.flavorid:
        spec.flavor = instance.flavor
        spec.numa_topology = hardware.numa_get_constraints(instance.flavor, instance.image_meta)
        spec.save()
    return spec
