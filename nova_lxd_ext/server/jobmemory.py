# SPDX-License-Identifier: Apache-2.0
"""Share a /dev/shm among the servers of a job on one host.

The flavor's key ``hpc:shared_memory`` requests it; the job is the server group, which the guest cannot choose.
nova-compute requests the group from the conductor, as nova does for its own late check of a group's policy.
"""

from collections.abc import Callable, Collection, Sequence

from nova import context as nova_context
from nova import exception, objects

from containerhost import errors
from containerhost.allocation import sharedmemory
from containerhost.allocation.sharedmemory import JobMemory, SharedMemories
from containerhost.engines.contract import ContainerState
from containerhost.engines.spec import DirectoryDisk, Part
from containerhost.inventory.scan import HostView
from containerhost.linux.storage.idmounts import IdMap
from nova_lxd_ext.hardware.flavor_devices import consumer
from nova_lxd_ext.instance import flavor, labels
from nova_lxd_ext.instance.attachmentprovider import AttachmentProvider
from nova_lxd_ext.instance.requested import RequestedResources

PART = "shared-memory"


class JobMemories(AttachmentProvider):
    """Attach the shared /dev/shm of a server's job on this host to its container.

    :param ids: returns the id map of a container by its name; None for a privileged one
    """

    def __init__(self, memories: SharedMemories, ids: Callable[[str], IdMap | None]) -> None:
        self._memories = memories
        self._ids = ids

    def require_possible(self, instance: objects.Instance, requested: RequestedResources, view: HostView) -> None:
        """Refuse shared memory that the server cannot have.

        :raises SpecError: the flavor's number is invalid, or the server is in no server group
        """
        wanted(instance)

    def attach_all(self, instance: objects.Instance, requested: RequestedResources, view: HostView) -> tuple[Part, ...]:
        memory = wanted(instance)
        if memory is None:
            return ()
        self._memories.join(memory, consumer(instance))
        return (DirectoryDisk(PART, self._memories.view(memory, consumer(instance)), sharedmemory.TARGET),)

    def starting(self, instance: objects.Instance) -> None:
        memory = wanted(instance)
        if memory is not None:
            self._memories.show(memory, consumer(instance), self._ids(instance.name))

    def release_unused(self, instance: objects.Instance, parts: Sequence[Part], container: int | None,
                       view: HostView) -> None:
        self._leave_unasked(instance)

    def revert_resize(self, instance: objects.Instance, requested: RequestedResources) -> None:
        self._leave_unasked(instance)

    def _leave_unasked(self, instance: objects.Instance) -> None:
        if flavor.shared_memory(instance.flavor.extra_specs, instance.flavor.memory_mb) is None:
            self._memories.leave(consumer(instance))

    def release_all(self, instance: objects.Instance, requested: RequestedResources, view: HostView) -> None:
        self._memories.leave(consumer(instance))

    def reconcile(self, alive: Collection[ContainerState]) -> None:
        present = {state.labels.get(labels.UUID) for state in alive}
        self._memories.reconcile(lambda member: member.uuid in present)


def wanted(instance: objects.Instance) -> JobMemory | None:
    """Return the shared memory that the server's flavor requests, identified by nova's ids.

    :raises SpecError: its number is invalid, or the server is in no server group
    """
    size = flavor.shared_memory(instance.flavor.extra_specs, instance.flavor.memory_mb)
    if size is None:
        return None
    try:
        group = objects.InstanceGroup.get_by_instance_uuid(nova_context.get_admin_context(), instance.uuid)
    except exception.InstanceGroupNotFound as error:
        raise errors.SpecError(
            f"The flavor requests memory that the servers of a job share (hpc:shared_memory={size // sharedmemory.MIB})"
            ", but the server is in no server group: create one for the job and give its id as hint group. A server "
            "whose group was deleted must be resized to a flavor without that key.") from error
    if group.project_id != instance.project_id:
        raise errors.SpecError(f"Server group {group.uuid} belongs to another project: the servers of a job that "
                               "share memory must be of one project.")
    return JobMemory(instance.project_id, group.uuid, size)
