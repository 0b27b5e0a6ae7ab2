# SPDX-License-Identifier: Apache-2.0
"""Create and delete a server's container, in an order that is safe against a kill at any step.

All remains of a server on the host can be found after every step: the allocation records name the container before
it exists, the server's directory has its uuid, and so has the container. Every step of the deletion is idempotent,
so repeating it undoes the work of a killed driver.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from nova import exception, objects
from nova.compute import task_states, vm_states
from oslo_config import cfg
from oslo_log import log as logging

from containerhost import errors
from containerhost.engines import bounds, gpubounds
from containerhost.engines.contract import ContainerState, Engine, Status
from containerhost.engines.corebinding import CoreBinding
from containerhost.engines.spec import ContainerSpec
from containerhost.guest import resources
from containerhost.rollback import Rollback
from nova_lxd_ext.hardware import tags
from nova_lxd_ext.host import startup
from nova_lxd_ext.image.images import Cache
from nova_lxd_ext.instance import flavor, labels
from nova_lxd_ext.instance.requested import NOTHING, RequestedResources
from nova_lxd_ext.instance.states import States
from nova_lxd_ext.server import cloudinit
from nova_lxd_ext.server.attachments import DeviceAttachments
from nova_lxd_ext.storage import configdrive, directories

LOG = logging.getLogger(__name__)

ESTABLISHED = frozenset({vm_states.ACTIVE, vm_states.STOPPED, vm_states.PAUSED, vm_states.SUSPENDED, vm_states.RESCUED,
                         vm_states.RESIZED, vm_states.SHELVED})
WHOLE = 100  # %


class Lifecycle:
    """Create the container of a server that boots, and delete it with all that the server has on this host.

    :param host_cpus: reads the host's cores that nova may currently use
    :param cores: chooses the cores of servers with an affinity; the caller of :meth:`spec` binds them
    """

    def __init__(self, conf: cfg.ConfigOpts, engine: Engine, states: States, attachments: DeviceAttachments,
                 images: Cache, cores: CoreBinding, host_cpus: Callable[[], flavor.HostCpus],
                 publish_tags: tags.PublishTags = tags.refresh) -> None:
        self._conf = conf
        self._engine = engine
        self._states = states
        self._attachments = attachments
        self._images = images
        self.cores = cores
        self._host_cpus = host_cpus
        self._publish_tags = publish_tags

    def spawn(self, context: Any, instance: objects.Instance, image_meta: objects.ImageMeta,
              injected_files: Sequence[tuple[str, str]], admin_password: str | None,
              requested: RequestedResources, power_on: bool) -> None:
        """Create the server's container and start it, after all checks that need no change.

        On any error the container is removed. A server with full progress was already booted: nova may have deleted
        the image of its container.
        """
        view = self._attachments.view()
        self._attachments.require_possible(instance, requested, view)
        require_config_drive_for(injected_files, instance)
        spec = self.spec(instance)
        if self._states.find(instance) is not None:
            raise exception.InstanceExists(name=instance.name)
        image = self._images.ensure(context, image_meta, instance.flavor.root_gb, instance.trusted_certs)
        report_progress(instance, 50)
        with Rollback(f"boot of server {instance.uuid}") as undo:
            undo.on_error("remove the container", self._take_back, instance, requested)
            with self._attachments.expecting(instance, requested):
                parts = self._attachments.attach_all(instance, requested, view)
                self._publish_tags(context, instance, requested.network_info)
                mounts = configdrive.write(instance, injected_files, admin_password, requested.network_info)
                spec = dataclasses.replace(spec, image=image, parts=parts, mounts=mounts)
                with self.cores.bound(spec) as bound:
                    self._engine.create(resources.with_document(bound))
                report_progress(instance, 80)
            if power_on:
                self._attachments.start(instance, parts)
            report_progress(instance, WHOLE)
        self._states.changed()

    def _take_back(self, instance: objects.Instance, requested: RequestedResources) -> None:
        """Undo a boot, waiting for a restarting daemon, whose pending creation would otherwise remain."""
        startup.await_server(self._engine, self._conf.lxd.ready_timeout)
        self.remove(instance, requested)

    def spec(self, instance: objects.Instance) -> ContainerSpec:
        """Return the flavor's part of the container's spec; nothing is changed.

        :raises UnsupportedOnHost: this host has no room for the flavor's affinity
        """
        conf, chosen = self._conf.lxd, instance.flavor
        cpu = flavor.bound_cpu(chosen.vcpus, instance.numa_topology, self._host_cpus(), chosen.extra_specs)
        memory = flavor.memory(chosen.memory_mb, instance.numa_topology)
        own = flavor.elastic(chosen.extra_specs, instance.numa_topology, cpu, memory)
        spec = bounds.marked(ContainerSpec(
            name=instance.name,
            image="",
            cpu=dataclasses.replace(cpu, may_revert=may_get_cores_back(instance)),
            memory=memory,
            root=flavor.root_disk(chosen.root_gb, chosen.extra_specs, conf.storage_pool),
            security=flavor.security(chosen.extra_specs, allow_privileged=conf.allow_privileged,
                                     isolated=conf.isolated),
            cloud_init=cloudinit.documents(instance),
            processes=flavor.processes(chosen.extra_specs, conf.process_limit),
            gpu_libraries=flavor.gpu_capabilities(chosen.extra_specs, ()),  # applies also without a GPU
            labels=labels.of(instance)), own)
        return self.cores.preview(gpubounds.marked(spec, flavor.gpus(chosen.extra_specs, conf.gpu_capabilities)))

    def release_reserved_cores(self, instance: objects.Instance) -> None:
        """Release the cores that only a revert would have needed.

        An error is logged: the cores then stay reserved until the server is resized again or deleted."""
        try:
            state = self._states.find(instance)
            if state is not None and state.reserved:
                spec = self.spec(instance)
                told = {key: text for key, text in state.labels.items() if key == resources.LABEL}
                spec = dataclasses.replace(spec, labels=dict(spec.labels) | told)
                cpu = dataclasses.replace(spec.cpu, may_revert=False, reserved=frozenset())
                with self.cores.bound(dataclasses.replace(spec, cpu=cpu)) as bound:
                    self._engine.set_limits(instance.name, bound)
        except errors.ContainerHostError:
            LOG.exception("The cores that the server had before its resize stay reserved", instance=instance)

    def remove(self, instance: objects.Instance, requested: RequestedResources = NOTHING,
               keep_disk: bool = False) -> None:
        """Delete the container and return the requested resources, from any state, even a partial one.

        Devices are released only once the container can no longer use them: an earlier error keeps the records that
        the next attempt needs.

        :param keep_disk: leave the stopped container and the server's directory for nova to use or remove later
        """
        if keep_disk:
            self._stop_if_there(instance)
        elif not self._states.is_foreign(instance):
            # Called even if there is no container: a killed caller's creation may still be in progress in the engine.
            self._engine.delete(instance.name)
            self._delete_aside(instance)
        self._states.changed()
        self._attachments.release_all(instance, requested, self._attachments.view())
        if not keep_disk:
            self._attachments.end(instance.uuid)
            directories.remove(instance.uuid)

    def discard(self, name: str, uuid: str) -> None:
        """Remove only a server's container, disks and directory: the server is on another host."""
        self._engine.delete(name)
        self._states.changed()
        self._attachments.end(uuid)
        directories.remove(uuid)

    def _delete_aside(self, instance: objects.Instance) -> None:
        """Delete the container that was set aside: a rescued server has two."""
        aside = self._states.aside_of(instance)
        if aside is not None:
            self._engine.delete(aside.name)

    def _stop_if_there(self, instance: objects.Instance) -> None:
        if self._states.find(instance) is not None:
            self._engine.stop(instance.name, timeout=self._conf.lxd.stop_timeout, force=True)
            self._engine.update_devices(instance.name, ())  # others may allocate them before it has its old size again

    @staticmethod
    def has_records() -> bool:
        """Return whether this host keeps a directory of any server."""
        return bool(directories.all_uuids())

    def reconcile(self, instances: Iterable[objects.Instance]) -> None:
        """Release, at the driver's start, the remains of servers that neither the engine nor nova has here.

        The parts of a server that nova places here stay, even without a container: nova's deletion, rebuild or
        clean-up releases them. An engine that has none of nova's established servers is not trusted."""
        aside = (dataclasses.replace(state, name=name) for name, state in self._states.aside().items())
        present = (*self._states.all(), *aside)
        uuids = {labels.uuid(state.labels) or "" for state in present}
        placed = [instance for instance in instances if instance.uuid not in uuids]
        missing = [instance for instance in placed if is_established(instance)]
        for instance in missing:
            LOG.error("Nova places the server here, but the engine has no container %s: the server's resources on "
                      "this host stay. Restore the container, or rebuild or delete the server", instance.name,
                      instance=instance)
        if missing and not uuids:
            LOG.error("The engine has no server at all in project %s, but nova expects %d here: nothing is cleaned "
                      "up. Check [lxd]endpoint and [lxd]project, and whether the engine's database was restored",
                      self._conf.lxd.project, len(missing))
            return
        alive = (*present, *(ContainerState(instance.name, Status.STOPPED, {labels.UUID: instance.uuid})
                             for instance in placed))
        self._attachments.reconcile(alive)
        for uuid in directories.remove_all_but(uuids | {instance.uuid for instance in placed}):
            LOG.warning("Removed the directory of a server that has no container", instance_uuid=uuid)

    def end_interrupted_boots(self, instances: Iterable[objects.Instance]) -> None:
        """Remove, at the driver's start, containers whose boot a killed nova-compute left unfinished.

        Nova sets such servers to ERROR and does not finish them. This excludes servers that were once built: when
        one is being unshelved, with the task state of a boot, its container may be the only copy.
        """
        for instance in instances:
            if instance.vm_state == vm_states.BUILDING:
                LOG.warning("The boot was interrupted: the remains of the server are removed", instance=instance)
                try:
                    self.remove(instance)
                except (errors.ContainerHostError, OSError):
                    # One failure must not delay other servers; nova's deletion of this server retries.
                    LOG.exception("The server whose boot was interrupted could not be removed", instance=instance)


def may_get_cores_back(instance: objects.Instance) -> bool:
    """Return whether the server has, or will have, an unconfirmed new size, and had exclusive cores before."""
    if "old_flavor" not in instance or not instance.old_flavor or not instance.new_flavor:
        return False
    is_new = instance.flavor.flavorid == instance.new_flavor.flavorid
    return is_new and flavor.AFFINITY in instance.old_flavor.extra_specs


def is_established(instance: objects.Instance) -> bool:
    """Return whether nova relies on the server's container: it was built, and is not being replaced or removed."""
    return instance.vm_state in ESTABLISHED and instance.task_state is None


def require_config_drive_for(injected_files: Sequence[tuple[str, str]], instance: objects.Instance) -> None:
    """Refuse injected files without a config drive, which is the only way to inject them into a container.

    :raises BuildAbortException: files are injected, but there is no config drive
    """
    if injected_files and not configdrive.required(instance):
        raise exception.BuildAbortException(instance_uuid=instance.uuid, reason=(
            "The server has personality files, which reach a container by the config drive only. "
            "Ask for a config drive (--config-drive true), or use user data."))


def report_progress(instance: objects.Instance, percent: int) -> None:
    """Report the progress of a boot to the API, and end it if the task state shows that the server was deleted.

    Nova boots an evacuated server with its claim applied (``Instance.mutated_migration_context``). That is not
    saved, because the boot may be undone.

    :raises UnexpectedDeletingTaskStateError: nova then ends the boot without an error
    """
    instance.progress = percent
    with (instance.mutated_migration_context(revert=True) if instance.task_state == task_states.REBUILD_SPAWNING
          else contextlib.nullcontext()):
        instance.save(expected_task_state=[instance.task_state])
