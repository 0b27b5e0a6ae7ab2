# SPDX-License-Identifier: Apache-2.0
"""Attach all parts of a container besides its root disk before it starts, and release them after its deletion.

Each kind of part has a provider, which knows the source of its parts. All operations that boot, start, resize,
rescue or move a server use the attachments, so that they cover every kind.
"""

import contextlib
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from nova import objects
from oslo_log import log as logging

from containerhost import errors
from containerhost.engines.contract import ContainerState, Engine, first_process
from containerhost.engines.resizelock import resizing
from containerhost.engines.spec import Part, grants_of
from containerhost.inventory.scan import HostView
from nova_lxd_ext.instance.attachmentprovider import AttachmentProvider
from nova_lxd_ext.instance.requested import RequestedResources
from nova_lxd_ext.storage import configdrive
from nova_lxd_ext.validators import GPUS_MIN

LOG = logging.getLogger(__name__)

KILL_TIMEOUT = 30  # s for a container to shut down before it is killed


class DeviceAttachments:
    """Attach and release all parts of a server's container through their providers.

    :param locks: the directory that all drivers of the host and the elastic service share
    :param view: returns the view of a new operation, which the caller passes to every method of the operation
    """

    def __init__(self, engine: Engine, providers: Sequence[AttachmentProvider], view: Callable[[], HostView],
                 locks: Path) -> None:
        self._engine = engine
        self._locks = locks
        self._providers = tuple(providers)
        self.view = view

    def require_possible(self, instance: objects.Instance, requested: RequestedResources, view: HostView) -> None:
        for provider in self._providers:
            provider.require_possible(instance, requested, view)

    @contextlib.contextmanager
    def expecting(self, instance: objects.Instance, requested: RequestedResources) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for provider in self._providers:
                stack.enter_context(provider.expecting(instance, requested))
            yield

    def attach_all(self, instance: objects.Instance, requested: RequestedResources, view: HostView) -> tuple[Part, ...]:
        """Attach all parts. On an error the caller releases the attached ones."""
        with self._alone(instance):
            pass  # wait for the elastic service, which may be detaching a GPU from the container
        return tuple(part for provider in self._providers for part in provider.attach_all(instance, requested, view))

    def _alone(self, instance: objects.Instance) -> AbstractContextManager[object]:
        """Exclude changes by the elastic service of the devices of a server that may lose some."""
        return (resizing(self._locks, instance.name) if GPUS_MIN in instance.flavor.extra_specs
                else contextlib.nullcontext())

    def update_devices(self, instance: objects.Instance, requested: RequestedResources, view: HostView
                       ) -> tuple[Part, ...]:
        """Update a stopped container to its server's requested parts.

        It does not wait for Neutron, which sends no event for a port that is already wired or disabled; also, no
        event arrives before nova-compute has started."""
        parts = self.attach_all(instance, requested, view)
        self._engine.update_devices(instance.name, parts)
        self.release_unused(instance, parts, view)
        return parts

    def release_unused(self, instance: objects.Instance, parts: Sequence[Part], view: HostView) -> None:
        container = first_process(self._engine, instance.name)
        for provider in self._providers:
            provider.release_unused(instance, parts, container, view)

    def start(self, instance: objects.Instance, parts: Sequence[Part]) -> None:
        """Start the container; stop it again if it sees more or less than it was granted.

        :raises NotAsGranted: the container is not running then
        """
        name = instance.name
        if configdrive.required(instance):
            configdrive.let_read(instance.uuid, self._engine.root_ids(name)[0])
        for provider in self._providers:
            provider.starting(instance)
        with self._alone(instance):
            self._engine.start(name)
            grants = grants_of(parts)
            if not grants:
                return
            try:
                self._engine.verify(name, grants)
            except BaseException:
                self._engine.stop(name, timeout=KILL_TIMEOUT, force=True)
                raise

    def release_all(self, instance: objects.Instance, requested: RequestedResources, view: HostView) -> None:
        """Release all parts, trying all providers; the first error is raised at the end."""
        failures = []
        for provider in reversed(self._providers):
            try:
                provider.release_all(instance, requested, view)
            except Exception as error:
                LOG.exception("Not all %s are released", type(provider).__name__, instance=instance)
                failures.append(error)
        if failures:
            raise failures[0]

    def revert_resize(self, instance: objects.Instance, requested: RequestedResources) -> None:
        for provider in self._providers:
            provider.revert_resize(instance, requested)

    def reset_devices(self, instance: objects.Instance, view: HostView) -> None:
        for provider in self._providers:
            provider.reset_devices(instance, view)

    def end(self, server: str) -> None:
        for provider in self._providers:
            provider.end(server)

    def stopped(self, instance: objects.Instance) -> None:
        for provider in self._providers:
            provider.stopped(instance)

    def pause(self, instance: objects.Instance) -> None:
        for provider in self._providers:
            provider.pause(instance)

    def resume(self, instance: objects.Instance) -> None:
        for provider in self._providers:
            provider.resume(instance)

    def reconcile(self, alive: Collection[ContainerState]) -> None:
        """Reconcile every provider, logging failures."""
        for provider in self._providers:
            try:
                provider.reconcile(alive)
            except (errors.ContainerHostError, OSError):
                LOG.exception("Not all %s of deleted servers could be released", type(provider).__name__)
