# SPDX-License-Identifier: Apache-2.0
"""Attach everything that a container has beside its root disk before it starts, and release it after it is gone.

Each kind of part has a provider, which alone knows where its parts come from. Whoever boots, starts, resizes, rescues
or moves a server talks to the attachments, so that no kind is forgotten anywhere.
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

KILL_TIMEOUT = 30  # s to end a container that must not go on


class DeviceAttachments:
    """Attach and release all parts of a server's container through their providers.

    :param locks: the directory that all drivers of the host and the elastic service share
    :param providers: in the order in which they attach
    :param view: makes the view of a new operation; the caller passes it to every method that the operation calls
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
        """Attach everything. On an error the caller releases what was attached."""
        with self._alone(instance):
            pass  # the elastic service may be taking a GPU from the container, which ran a moment ago
        return tuple(part for provider in self._providers for part in provider.attach_all(instance, requested, view))

    def _alone(self, instance: objects.Instance) -> AbstractContextManager[object]:
        """Keep the elastic service from changing the devices of a server that may lose some."""
        return (resizing(self._locks, instance.name) if GPUS_MIN in instance.flavor.extra_specs
                else contextlib.nullcontext())

    def update_devices(self, instance: objects.Instance, requested: RequestedResources, view: HostView
                       ) -> tuple[Part, ...]:
        """Bring a stopped container up to date with what its server is to have.

        Neutron is not waited for: it tells nothing of a port that is wired already or switched off, and nothing can
        arrive here before nova-compute has started."""
        parts = self.attach_all(instance, requested, view)
        self._engine.update_devices(instance.name, parts)
        self.release_unused(instance, parts, view)
        return parts

    def release_unused(self, instance: objects.Instance, parts: Sequence[Part], view: HostView) -> None:
        container = first_process(self._engine, instance.name)
        for provider in self._providers:
            provider.release_unused(instance, parts, container, view)

    def start(self, instance: objects.Instance, parts: Sequence[Part]) -> None:
        """Start the container; one that sees more or less than it was granted is ended again.

        :raises NotAsGranted: and it does not run
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
        """Release everything; a provider that fails keeps no other from it: the first error is raised at the end."""
        failures = []
        for provider in reversed(self._providers):
            try:
                provider.release_all(instance, requested, view)
            except Exception as error:
                LOG.exception("%s are not all released", type(provider).__name__, instance=instance)
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
        """Reconcile every provider. One that fails keeps no server from being served."""
        for provider in self._providers:
            try:
                provider.reconcile(alive)
            except (errors.ContainerHostError, OSError):
                LOG.exception("%s of servers that are gone could not all be released", type(provider).__name__)
