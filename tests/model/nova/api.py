# SPDX-License-Identifier: Apache-2.0
"""The requests of nova's API: in which states a server takes each, what is recorded, and which host is sent what.

nova.compute.api has the states (``check_instance_state``) and task states, nova.conductor the moves' allocations and
records. What follows on the hosts is nova.compute.manager's.
"""

from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import oslo_messaging as messaging
from nova import exception, objects
from nova.compute import instance_actions, task_states, vm_states

from tests.model.nova.cloud import Cloud, new_instance
from tests.model.nova.compute import RESCUE_IMAGE, gpus_of

BASE_IMAGE = "base"
IMAGE = {"id": BASE_IMAGE, "name": "base", "properties": {}}
ACTIVE, STOPPED, ERROR = vm_states.ACTIVE, vm_states.STOPPED, vm_states.ERROR
HARD_REBOOTS = (None, task_states.REBOOTING, task_states.REBOOTING_HARD, task_states.RESUMING, task_states.UNPAUSING,
                task_states.SUSPENDING)


def flavor(number: int, gpus: int, memory: int) -> objects.Flavor:
    return objects.Flavor(
        id=number, flavorid=str(number), name=f"flavor{number}", vcpus=number, memory_mb=memory, root_gb=4,
        ephemeral_gb=0, swap=0, extra_specs={"pci_passthrough:alias": f"gpu:{gpus}"} if gpus else {})


FLAVORS = {"0 GPUs, 512 MiB": flavor(1, 0, 512), "1 GPU, 512 MiB": flavor(2, 1, 512),
           "1 GPU, 1 GiB": flavor(3, 1, 1024), "2 GPUs, 1 GiB": flavor(4, 2, 1024)}


class Request(NamedTuple):
    """:ivar vm_states, task_states: in which a server takes it; None stands for any
    :ivar task: the task state that the API sets; None sets none
    :ivar send: casts what the API or the conductor sends
    """

    vm_states: Collection[str] | None
    task: str | None
    send: Callable[[Cloud, Any, objects.Instance], None]
    task_states: Collection[str | None] | None = (None,)


def _image(cloud: Cloud) -> str:
    return f"image-{cloud.count()}"


def _nothing(cloud: Cloud, context: Any, server: objects.Instance) -> None:
    """Send nothing: the API's database has it."""


def _delete(cloud: Cloud, context: Any, server: objects.Instance) -> None:
    if server.host:
        if server.vm_state == vm_states.RESIZED and _finished(cloud, server, "confirming"):
            _confirm(cloud, context, server)
        cloud.rpc.terminate_instance(context, server, [])
    else:  # on no host: the API deletes it
        cloud.placement.delete_allocation_for_instance(context, server.uuid)
        server.destroy()


def _finished(cloud: Cloud, server: objects.Instance, *others: str) -> objects.MigrationList:
    """Return the move that waits for its confirmation, or is in one of the other states."""
    return cloud.migrations_by(None, {"instance_uuid": server.uuid, "status": ["finished", *others]})


def _confirm(cloud: Cloud, context: Any, server: objects.Instance) -> None:
    move = _finished(cloud, server, "confirming")[0]
    move.status = "confirming"
    move.save()
    cloud.rpc.confirm_resize(context, server, move, move.source_compute)


def _revert(cloud: Cloud, context: Any, server: objects.Instance) -> None:
    move = _finished(cloud, server)[0]
    move.status = "reverting"
    move.save()
    cloud.rpc.revert_resize(context, server, move, move.dest_compute, None)


def _rebuild(cloud: Cloud, context: Any, server: objects.Instance, host: str | None = None, move: Any = None) -> None:
    cloud.rpc.rebuild_instance(
        context, server, new_pass="", injected_files=[], image_ref=None if move else BASE_IMAGE,
        orig_image_ref=BASE_IMAGE, orig_sys_metadata={}, bdms=[], recreate=move is not None,
        on_shared_storage=False if move else None, host=host or server.host, node=host, preserve_ephemeral=False,
        migration=move, limits={}, request_spec=None, accel_uuids=[], reimage_boot_volume=False, target_state=None)


def _offload(cloud: Cloud, context: Any, server: objects.Instance) -> None:
    cloud.rpc.shelve_offload_instance(context, server, clean_shutdown=True, accel_uuids=[])


REQUESTS = {
    "stop": Request({ACTIVE, ERROR}, task_states.POWERING_OFF,
                    lambda cloud, context, server: cloud.rpc.stop_instance(context, server)),
    "start": Request({STOPPED}, task_states.POWERING_ON,
                     lambda cloud, context, server: cloud.rpc.start_instance(context, server)),
    "soft reboot": Request({ACTIVE}, task_states.REBOOTING,
                           lambda cloud, context, server: cloud.rpc.reboot_instance(context, server, None, "SOFT")),
    "hard reboot": Request({ACTIVE, STOPPED, vm_states.PAUSED, vm_states.SUSPENDED, ERROR}, task_states.REBOOTING_HARD,
                           lambda cloud, context, server: cloud.rpc.reboot_instance(context, server, None, "HARD"),
                           HARD_REBOOTS),
    "pause": Request({ACTIVE}, task_states.PAUSING,
                     lambda cloud, context, server: cloud.rpc.pause_instance(context, server)),
    "unpause": Request({vm_states.PAUSED}, task_states.UNPAUSING,
                       lambda cloud, context, server: cloud.rpc.unpause_instance(context, server)),
    "suspend": Request({ACTIVE}, task_states.SUSPENDING,
                       lambda cloud, context, server: cloud.rpc.suspend_instance(context, server)),
    "resume": Request({vm_states.SUSPENDED}, task_states.RESUMING,
                      lambda cloud, context, server: cloud.rpc.resume_instance(context, server)),
    "rescue": Request({ACTIVE, STOPPED, ERROR}, task_states.RESCUING,
                      lambda cloud, context, server: cloud.rpc.rescue_instance(context, server, "", RESCUE_IMAGE)),
    "unrescue": Request({vm_states.RESCUED}, task_states.UNRESCUING,
                        lambda cloud, context, server: cloud.rpc.unrescue_instance(context, server)),
    "snapshot": Request({ACTIVE, STOPPED, vm_states.PAUSED, vm_states.SUSPENDED}, task_states.IMAGE_SNAPSHOT_PENDING,
                        lambda cloud, context, server: cloud.rpc.snapshot_instance(context, server, _image(cloud))),
    "shelve": Request({ACTIVE, STOPPED, vm_states.PAUSED, vm_states.SUSPENDED}, task_states.SHELVING,
                      lambda cloud, context, server: cloud.rpc.shelve_instance(context, server, _image(cloud))),
    "shelve offload": Request({vm_states.SHELVED}, task_states.SHELVING_OFFLOADING, _offload),
    "rebuild": Request({ACTIVE, STOPPED, ERROR}, task_states.REBUILDING, _rebuild),
    "confirm": Request({vm_states.RESIZED}, None, _confirm),
    "revert": Request({vm_states.RESIZED}, task_states.RESIZE_REVERTING, _revert),
    "lock": Request(None, None, _nothing, None),
    "unlock": Request(None, None, _nothing, None),
    "delete": Request(None, task_states.DELETING, _delete, None),
}


def takes(cloud: Cloud, name: str, server: objects.Instance) -> bool:
    """Return whether the API takes a request for a server."""
    request = REQUESTS[name]
    if name in ("confirm", "revert") and not _finished(cloud, server):
        return False
    return ((request.vm_states is None or server.vm_state in request.vm_states)
            and (request.task_states is None or server.task_state in request.task_states)
            and (server.host is not None or name in ("delete", "lock", "unlock"))
            and (name != "delete" or server.task_state != task_states.DELETING))


def send(cloud: Cloud, name: str, uuid: str) -> None:
    """Take a request for a server."""
    request, server = REQUESTS[name], cloud.instance(uuid)
    context = cloud.begin_action(uuid, name)
    if request.task is not None:
        server.task_state = request.task
        server.save()
    request.send(cloud, context, server)


def boot(cloud: Cloud, host: str, size: objects.Flavor) -> str:
    """Create a server, which the scheduler places on ``host``."""
    server = new_instance(cloud, size, gpus_of(size), BASE_IMAGE)
    context = cloud.begin_action(server.uuid, "create")
    cloud.placement.allocate(server.uuid, cloud.nodes[host].uuid, size.vcpus)
    cloud.send(host, "build_and_run_instance", context, instance=server, image=IMAGE, request_spec=None,
               filter_properties={}, accel_uuids=[], injected_files=[], requested_networks=[], block_device_mapping=[],
               node=host, limits={})
    return str(server.uuid)


def resize(cloud: Cloud, uuid: str, host: str, size: objects.Flavor) -> None:
    """Resize a server, or migrate it, to ``host``: the migration holds the allocations of the old size from now on."""
    server, kind = cloud.instance(uuid), "resize"
    if size.id == server.flavor.id:
        kind = "migration"
    context = cloud.begin_action(uuid, instance_actions.RESIZE if kind == "resize" else instance_actions.MIGRATE)
    server.task_state = task_states.RESIZE_PREP
    server.save()
    move = cloud.create_migration(
        status="pre-migrating", instance_uuid=uuid, source_compute=server.host, source_node=server.node,
        migration_type=kind, old_instance_type_id=server.flavor.id, new_instance_type_id=size.id)
    if cloud.placement.get_allocations_for_consumer(context, uuid):  # nova deletes them when a rebuild fails
        cloud.placement.move_allocations(context, uuid, move.uuid)
    cloud.placement.allocate(uuid, cloud.nodes[host].uuid, size.vcpus)
    cloud.rpc.prep_resize(context, server, IMAGE, size, host, move, objects.RequestSpec(), {}, host, True, [])


def migrate_live(cloud: Cloud, uuid: str, host: str) -> None:
    """Migrate a running server live to ``host``, as the conductor does before it sends the request to the source.

    :raises MigrationError: a host refuses it, or does not answer
    """
    server = cloud.instance(uuid)
    context = cloud.begin_action(uuid, "live-migration")
    server.task_state = task_states.MIGRATING
    server.save()
    move = cloud.create_migration(
        status="accepted", instance_uuid=uuid, source_compute=server.host, source_node=server.node,
        migration_type="live-migration", old_instance_type_id=server.flavor.id, new_instance_type_id=server.flavor.id)
    held = bool(cloud.placement.get_allocations_for_consumer(context, uuid))
    if held:  # nova deletes them when a rebuild fails
        cloud.placement.move_allocations(context, uuid, move.uuid)
    cloud.placement.allocate(uuid, cloud.nodes[host].uuid, server.flavor.vcpus)
    try:
        data = cloud.rpc.check_can_live_migrate_destination(context, server, host, None, False, move, None)
    except (exception.NovaException, messaging.MessagingException) as error:
        if held:
            cloud.placement.move_allocations(context, move.uuid, uuid)
        else:
            cloud.placement.delete_allocation_for_instance(context, uuid)
        server = cloud.instance(uuid)
        server.task_state = None
        server.save()
        move.status = "error"
        move.save()
        raise exception.MigrationError(reason=str(error)) from error
    move.dest_compute = move.dest_node = host
    move.save()
    cloud.rpc.live_migration(context, server, host, None, server.host, move, data)


def unshelve(cloud: Cloud, uuid: str, host: str) -> None:
    server = cloud.instance(uuid)
    context = cloud.begin_action(uuid, "unshelve")
    server.task_state = task_states.UNSHELVING
    server.save()
    cloud.placement.allocate(uuid, cloud.nodes[host].uuid, server.flavor.vcpus)
    image = {"id": server.system_metadata["shelved_image_id"], "properties": {}}
    cloud.rpc.unshelve_instance(context, server, host, None, image=image, filter_properties={}, node=host,
                                accel_uuids=[])


def evacuate(cloud: Cloud, uuid: str, host: str) -> None:
    """Evacuate a server from a host that is off to ``host``."""
    server = cloud.instance(uuid)
    context = cloud.begin_action(uuid, "evacuate")
    server.task_state = task_states.REBUILDING
    server.save()
    move = cloud.create_migration(
        status="accepted", instance_uuid=uuid, source_compute=server.host, source_node=server.node,
        migration_type="evacuation", old_instance_type_id=server.flavor.id, new_instance_type_id=server.flavor.id)
    cloud.placement.allocate(uuid, cloud.nodes[host].uuid, server.flavor.vcpus)
    _rebuild(cloud, context, server, host, move)
