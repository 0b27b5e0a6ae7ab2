# SPDX-License-Identifier: Apache-2.0
"""Rescue a server: run it temporarily from another image, with its own, broken root mounted.

The server's container is set aside under another name, and one of the rescue image gets its name, ports, volumes and
devices. Unrescuing removes that one and restores the first. A kill in between leaves the container set aside, and
the next start or the server's deletion continues from there.
"""

import dataclasses
from collections.abc import Iterable
from typing import Any

from nova import exception, objects
from nova.compute import task_states, vm_states
from oslo_config import cfg
from oslo_log import log as logging

from containerhost import errors
from containerhost.engines.contract import Engine, Status
from containerhost.engines.spec import ContainerSpec, RescueMount
from containerhost.inventory.scan import HostView
from containerhost.rollback import Rollback
from nova_lxd_ext.access import password as passwords
from nova_lxd_ext.host import startup
from nova_lxd_ext.image.images import Cache
from nova_lxd_ext.instance import labels
from nova_lxd_ext.instance.requested import RequestedResources
from nova_lxd_ext.instance.states import States
from nova_lxd_ext.server.attachments import DeviceAttachments
from nova_lxd_ext.server.lifecycle import Lifecycle
from nova_lxd_ext.server.power import Power
from nova_lxd_ext.storage import configdrive

LOG = logging.getLogger(__name__)

TARGET = "/mnt/rescue"  # mount point of the original root in the rescue container


class Rescue:
    def __init__(self, conf: cfg.ConfigOpts, engine: Engine, states: States, lifecycle: Lifecycle, power: Power,
                 attachments: DeviceAttachments, images: Cache) -> None:
        self._conf = conf
        self._engine = engine
        self._states = states
        self._lifecycle = lifecycle
        self._power = power
        self._attachments = attachments
        self._images = images

    def enter(self, context: Any, instance: objects.Instance, image_meta: objects.ImageMeta, password: str | None,
              requested: RequestedResources) -> None:
        """Run the server from ``image_meta``; on any error restore its own container, stopped.

        :raises SpecError: the storage pool cannot mount the broken root
        """
        view = self._attachments.view()
        self._attachments.require_possible(instance, requested, view)
        self._bring_back(instance)
        self._engine.require_rescuable(self._states.require(instance).name)
        image = self._images.ensure(context, image_meta, instance.flavor.root_gb, instance.trusted_certs)
        aside = labels.aside(instance)
        spec = dataclasses.replace(self._lifecycle.spec(instance), image=image, rescue_mount=RescueMount(aside, TARGET))
        self._power.off(instance)
        with Rollback(f"rescue of server {instance.uuid}") as undo:
            undo.on_error("bring its own container back", self._recover, instance)
            # Two containers must not refer to the same device.
            self._engine.update_devices(instance.name, ())
            self._engine.rename(instance.name, aside)
            self._rescuing(instance, spec, password, requested, view)
        self._states.changed()
        if password:
            self._set_password(instance, image_meta, password)

    def leave(self, instance: objects.Instance, requested: RequestedResources) -> None:
        """Run the server from its own root. Idempotent."""
        self._bring_back(instance)
        self._power.on(instance, requested)

    def abandon(self, instance: objects.Instance) -> None:
        """Restore the own container of a server that nova does not have as rescued. Idempotent."""
        if instance.vm_state != vm_states.RESCUED and self._states.aside_of(instance) is not None:
            self._bring_back(instance)

    def reconcile(self, instances: Iterable[objects.Instance]) -> None:
        """Finish or undo, at the driver's start, rescues that a killed nova-compute interrupted.

        A rescue without a record in nova is undone. If the rescuing container is gone, unrescuing is completed. A
        running one stays, unless it was created for an unfinished rescue: nova may have set a rescued server to
        ERROR."""
        containers = {state.name: state.status for state in self._states.all()}
        known = {instance.name: instance for instance in instances}
        for name in self._states.aside().keys() & known.keys():
            instance = known[name]
            runs = containers.get(name) in (Status.RUNNING, Status.FROZEN)
            if name in containers and (instance.vm_state == vm_states.RESCUED
                                       or (runs and instance.task_state != task_states.RESCUING)):
                continue
            LOG.warning("The rescue was interrupted: the server's own container is restored", instance=instance)
            try:
                self._bring_back(instance)
            except errors.ContainerHostError:
                # One failure must not delay other servers; its next rescue or unrescue retries.
                LOG.exception("The server's own container was not restored", instance=instance)

    def _rescuing(self, instance: objects.Instance, spec: ContainerSpec, password: str | None,
                  requested: RequestedResources, view: HostView) -> None:
        parts = self._attachments.attach_all(instance, requested, view)
        mounts = configdrive.write(instance, (), password, requested.network_info, configdrive.RESCUE)
        with self._lifecycle.cores.bound(dataclasses.replace(spec, parts=parts, mounts=mounts)) as bound:
            self._engine.create(bound)
        self._attachments.start(instance, parts)

    def _set_password(self, instance: objects.Instance, image_meta: objects.ImageMeta, password: str) -> None:
        """Set the administrator's password; a failure is logged, because a key or config drive may exist."""
        try:
            passwords.set_admin(self._engine, instance.name, image_meta, password)
        except (exception.SetAdminPasswdNotSupported, errors.ContainerHostError) as error:
            LOG.warning("The rescued server does not have the password that its owner received: %s", error,
                        instance=instance)

    def _recover(self, instance: objects.Instance) -> None:
        """Undo a rescue, waiting for a restarting daemon."""
        startup.await_server(self._engine, self._conf.lxd.ready_timeout)
        self._bring_back(instance)

    def _bring_back(self, instance: objects.Instance) -> None:
        """Restore the name of the container that was set aside, if there is one."""
        aside = self._states.aside_of(instance)
        if aside is not None:
            if not self._states.is_foreign(instance):
                self._engine.delete(instance.name)
            self._engine.rename(aside.name, instance.name)
        self._states.changed()
        configdrive.remove(instance, configdrive.RESCUE)
