# SPDX-License-Identifier: Apache-2.0
"""Resize a server that stays on its host while its processes keep running (live resize).

Nova's flow is that of every resize: it claims the resources of the new flavor first, and frees those of one flavor
on confirm or revert. At nova's request to leave, everything is changed at once, so that an error keeps the server's
old size and nova releases the new one's resources. All later steps (nova's request to arrive, a revert, the next
start of a killed nova-compute) make the container match nova's record of the server.
"""

import dataclasses
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from nova import exception, objects
from nova.compute import vm_states
from oslo_config import cfg
from oslo_log import log as logging
from oslo_utils import units

from containerhost import errors
from containerhost.devices.grants import Grant
from containerhost.engines import bounds
from containerhost.engines.capabilities import Labelled, LiveChanges
from containerhost.engines.contract import ContainerState, Engine, Status
from containerhost.engines.resizelock import resizing
from containerhost.engines.spec import ContainerSpec, grants_of
from containerhost.guest import resources
from containerhost.guest.guestnotice import GuestNotice
from containerhost.inventory.scan import HostView
from containerhost.rollback import Rollback
from nova_lxd_ext.hardware.flavor_devices import FlavorDevices
from nova_lxd_ext.host import startup
from nova_lxd_ext.instance import flavor as flavors
from nova_lxd_ext.instance.requested import RequestedResources
from nova_lxd_ext.instance.states import States
from nova_lxd_ext.network import vifconfig
from nova_lxd_ext.server.attachments import DeviceAttachments
from nova_lxd_ext.server.incoming import as_it_was, as_it_will_be, is_at_home
from nova_lxd_ext.server.lifecycle import Lifecycle
from nova_lxd_ext.storage import volumeconfig
from nova_lxd_ext.validators import SHARED_MEMORY

LOG = logging.getLogger(__name__)


class LiveResize:
    def __init__(self, conf: cfg.ConfigOpts, engine: Engine, live: LiveChanges[Any], notice: GuestNotice,
                 states: States, attachments: DeviceAttachments, flavor_devices: FlavorDevices,
                 lifecycle: Lifecycle) -> None:
        self._conf = conf
        self._engine = engine
        self._live = live
        self._notice = notice
        self._states = states
        self._attachments = attachments
        self._flavor_devices = flavor_devices
        self._lifecycle = lifecycle

    def change(self, instance: objects.Instance, flavor: objects.Flavor, requested: RequestedResources,
               move: objects.Migration, state: ContainerState, view: HostView) -> bool:
        """Apply the move in progress to a running server, if it can keep running.

        :returns: whether it has changed; if not, it is unchanged, and must be resized while it is off
        :raises SpecError: the flavor requires a live resize, which is impossible
        :raises ResizeError: its processes need more memory than its new size has
        """
        flavors.live_resize_required(flavor.extra_specs)
        if state.status is not Status.RUNNING or instance.vm_state != vm_states.ACTIVE:
            return False
        with self._resizing(instance):
            return self._change(instance, flavor, requested, move, view)

    def _change(self, instance: objects.Instance, flavor: objects.Flavor, requested: RequestedResources,
                move: objects.Migration, view: HostView) -> bool:
        coming = as_it_will_be(instance)
        obstacles = self._obstacles_on_the_way(instance, flavor, requested, move)
        if not obstacles:
            then = self.requested(requested, flavor, instance.uuid)
            self._attachments.require_possible(coming, then, view)
            current = self._live.read(coming.name)
            spec = self._spec(coming, then, current, view)
            obstacles = self._live.obstacles(current, spec)
        require_allowed(flavor, obstacles)
        if not obstacles:
            with Rollback(f"live resize of server {instance.uuid}") as undo:
                if self._notice.announce(coming.name, notified(current), spec.labels[resources.LABEL]):
                    undo.on_error("what was announced", self._notify, instance)
                for shortage in self._shortage(coming) if flavor.memory_mb < instance.flavor.memory_mb else ():
                    raise exception.ResizeError(reason=f"{shortage}; end some of them, stop the server first, or "
                                                       "choose a larger flavor")
                obstacles = self._users(coming, spec, view)
                require_allowed(flavor, obstacles)
                if not obstacles:
                    undo.on_error("its former size", self._take_back, instance, requested)
                    self._converge(coming, then, spec, current, view)
                    return True
        LOG.info("The server is resized while it is off: %s", "; ".join(obstacles), instance=instance)
        return False

    def revert(self, instance: objects.Instance, requested: RequestedResources, move: objects.Migration) -> bool:
        """Revert a running server to its size before the move, while nova still has the resources of both.

        :returns: whether it was reverted; if not, it must be stopped, and the rest is done at its start
        """
        if (direct(requested) or volumeconfig.volumes(requested.block_device_info)
                or fixed_differences(instance.old_flavor, instance.flavor)):
            return False
        try:
            return self.reconcile(as_it_was(instance), self.requested(requested, instance.old_flavor, move.uuid),
                                  self._attachments.view())
        except errors.ContainerHostError:
            LOG.exception("Live revert failed; the server is stopped to revert", instance=instance)
            return False

    def reconcile(self, instance: objects.Instance, requested: RequestedResources, view: HostView) -> bool:
        """Make the running container match nova's record of the server.

        :returns: whether it matches; if not, it can only after a stop
        """
        if direct(requested):
            return True
        with self._resizing(instance):
            return self._reconcile(instance, requested, view)

    def _resizing(self, instance: objects.Instance) -> AbstractContextManager[object]:
        """Exclude changes of the container by the elastic service."""
        return resizing(Path(self._conf.lxd.owners_dir), instance.name)

    def _reconcile(self, instance: objects.Instance, requested: RequestedResources, view: HostView) -> bool:
        self._live.await_changes(instance.name)
        self._flavor_devices.rebind_driver(instance, view)
        current = self._live.read(instance.name)
        spec = self._spec(instance, requested, current, view)
        if not self._live.differs(current, spec):
            self._attachments.release_unused(instance, spec.grants, view)  # may be left by a killed request
            self._notify(instance)
            return True
        volumes = ("nova disconnects volumes at a resize",) if volumeconfig.volumes(requested.block_device_info) else ()
        obstacles = (*volumes, *self._live.obstacles(current, spec), *self._users(instance, spec, view),
                     *self._shortage(instance))
        if obstacles:
            LOG.warning("Live resize is not possible; the server is stopped to resize: %s", "; ".join(obstacles),
                        instance=instance)
            return False
        self._converge(instance, requested, spec, current, view)
        self._notify(instance)
        return True

    def requested(self, requested: RequestedResources, flavor: objects.Flavor, consumer: str) -> RequestedResources:
        """Return the requested resources with Placement's allocations of one of the two sizes.

        During a resize the migration record owns the old allocation."""
        return dataclasses.replace(requested, allocations=self._flavor_devices.allocations(flavor, consumer))

    @staticmethod
    def _obstacles_on_the_way(instance: objects.Instance, flavor: objects.Flavor, requested: RequestedResources,
                              move: objects.Migration) -> tuple[str, ...]:
        """Return nova's own steps of a resize that stop the server, and changes of port and disk keys."""
        if not is_at_home(move):
            return (f"nova's scheduler chose another host, {move.dest_compute}, for it",)
        found = [f"nova gives port {port} another network function" for port in direct(requested)]
        if volumeconfig.volumes(requested.block_device_info):
            found.append("nova disconnects volumes at a resize")
        return (*found, *fixed_differences(instance.flavor, flavor))

    def _users(self, server: objects.Instance, spec: ContainerSpec, view: HostView) -> tuple[str, ...]:
        users = self._flavor_devices.users_of_others(server, spec.grants, view)
        return (f"a device it would lose is in use by {', '.join(users)}",) if users else ()

    def _spec(self, server: objects.Instance, requested: RequestedResources, current: Labelled,
              view: HostView) -> ContainerSpec:
        """Return the spec of the server, with its grants as far as they are known in advance."""
        grants = self._flavor_devices.preview(server, requested, view)
        return with_grants(self._lifecycle.spec(server), grants, current)

    def _notify(self, server: objects.Instance) -> None:
        """Write the resources of the container's labels into it."""
        document = notified(self._live.read(server.name))
        if document is not None:
            self._notice.notify(server.name, document)

    def _shortage(self, server: objects.Instance) -> tuple[str, ...]:
        """Describe by how much the server's processes exceed its smaller size; empty if they fit."""
        used, size = self._live.memory_in_use(server.name), server.flavor.memory_mb
        return (f"its processes use {used // units.Mi} MiB of memory, of which flavor {server.flavor.name} gives it "
                f"{size}",) if used > size * units.Mi else ()

    def _converge(self, server: objects.Instance, requested: RequestedResources, spec: ContainerSpec, current: Labelled,
                  view: HostView) -> None:
        """Change the running container to the spec, then release what it lost. Idempotent."""
        grants = grants_of(self._flavor_devices.attach_running(server, requested, view))
        with self._lifecycle.cores.bound(dataclasses.replace(spec, parts=grants)) as bound:
            self._live.adapt(current, with_grants(bound, grants, current))
        self._engine.verify(server.name, grants)
        self._attachments.release_unused(server, grants, view)
        self._states.changed()

    def _take_back(self, instance: objects.Instance, requested: RequestedResources) -> None:
        startup.await_server(self._engine, self._conf.lxd.ready_timeout)
        current, view = self._live.read(instance.name), self._attachments.view()
        spec = self._spec(instance, requested, current, view)
        try:
            self._converge(instance, requested, spec, current, view)
        except errors.NotAsGranted:
            self._live.replace_devices(self._live.read(instance.name), spec)
            self._converge(instance, requested, spec, self._live.read(instance.name), view)


def notified(current: Labelled) -> str | None:
    """Return the resource document that the container has received."""
    return current.label(resources.LABEL)


def with_grants(spec: ContainerSpec, grants: tuple[Grant, ...], current: Labelled) -> ContainerSpec:
    """Return the spec with grants, and with the resource document of the ``current`` container.

    A container that the elastic service resizes keeps its present size while its flavor's bounds are unchanged."""
    present = bounds.keeping_size(spec, current.label(bounds.LABEL), resources.parse(notified(current)))
    return resources.with_document(dataclasses.replace(present, parts=grants), notified(current))


def require_allowed(flavor: objects.Flavor, obstacles: Sequence[str]) -> None:
    """Refuse a resize that would stop a server whose flavor only permits a live resize.

    :raises SpecError: the flavor permits only a live resize, and there are obstacles
    """
    if obstacles and flavors.live_resize_required(flavor.extra_specs):
        raise errors.SpecError(f"Flavor {flavor.name} (lxd:live_resize=required) permits only a live resize, which is "
                               f"not possible: {'; '.join(obstacles)}. Stop the server first, or "
                               "choose another flavor.")


def fixed_differences(old: objects.Flavor, new: objects.Flavor) -> tuple[str, ...]:
    """Describe the differences of two flavors that require a stopped server."""
    found = []
    if (old.ephemeral_gb, old.swap) != (new.ephemeral_gb, new.swap):
        found.append("ephemeral and swap disks do not change while it runs")
    if vifconfig.shapes(old.extra_specs) != vifconfig.shapes(new.extra_specs):
        found.append("the limits of its ports (quota:vif_*) do not change while it runs")
    if old.extra_specs.get(SHARED_MEMORY) != new.extra_specs.get(SHARED_MEMORY):
        found.append(f"its shared memory ({SHARED_MEMORY}) does not change while it runs")
    return tuple(found)


def direct(requested: RequestedResources) -> tuple[str, ...]:
    """Return the ids of ports with a network function; a server with such ports is never live-resized."""
    return tuple(vif["id"] for vif in requested.network_info if vifconfig.kind(vif) is vifconfig.Kind.DIRECT)
