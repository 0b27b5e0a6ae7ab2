# SPDX-License-Identifier: Apache-2.0
"""Outfit: everything a container has beside its root disk, put on before it starts and taken off after it is gone.

Each kind of part has a supplier, which alone knows where its parts come from. Whoever boots, starts, resizes, rescues
or moves a server talks to the outfit, so that no kind is forgotten anywhere.
"""

import contextlib
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

from nova import objects
from oslo_log import log as logging

from containerhost import errors
from containerhost.devices.scan import HostView
from containerhost.engines import ContainerState, Engine, first_process
from containerhost.spec import Part, grants_of
from nova_lxd_ext.server.wanted import Wanted
from nova_lxd_ext.storage import configdrive

LOG = logging.getLogger(__name__)

KILL_LIMIT = 30  # s to end a container that must not go on


class Supplier:
    """One kind of part. Every method may be repeated. The view is that of the operation which the call is a part of."""

    def require_possible(self, instance: objects.Instance, wanted: Wanted, view: HostView) -> None:
        """Refuse, before anything changes, what can never be."""

    def expecting(self, instance: objects.Instance, wanted: Wanted) -> AbstractContextManager[None]:
        """Encloses putting on: what others must confirm is waited for at the end of the block."""
        return contextlib.nullcontext()

    def put_on(self, context: Any, instance: objects.Instance, wanted: Wanted, view: HostView) -> tuple[Part, ...]:
        """Prepare the parts on the host; what the server has already stays as it is."""
        raise NotImplementedError(f"{type(self).__name__}.put_on")

    def trim(self, instance: objects.Instance, parts: Sequence[Part], container: int | None, view: HostView) -> None:
        """Return what the server has beside ``parts``: its container, running or not, does not have it any more.

        :param container: its first process; None when it does not run
        """

    def take_off(self, context: Any, instance: objects.Instance, wanted: Wanted, view: HostView) -> None:
        """Return everything the server has on this host, also what ``wanted`` does not name. Its container is stopped
        or gone."""
        raise NotImplementedError(f"{type(self).__name__}.take_off")

    def fit_back(self, instance: objects.Instance, wanted: Wanted) -> None:
        """Its size changes back, its container is stopped and without parts: return what only the other size had."""

    def reset_devices(self, instance: objects.Instance, view: HostView) -> None:
        """Its container is stopped, to start again: mend what is broken of what it has."""

    def end(self, server: str) -> None:
        """Its container is gone for good: remove what lived with it.

        :param server: its uuid
        """

    def pause(self, instance: objects.Instance) -> None:
        """Its container is frozen: silence what would go on without it."""

    def resume(self, instance: objects.Instance) -> None:
        """Its container is about to go on."""

    def reconcile(self, alive: Collection[ContainerState]) -> None:
        """At the driver's start: return what servers have that are not among ``alive``."""


class Outfit:
    """:param suppliers: in the order in which they put on
    :param view: makes the view of a new operation; the caller passes it to every method that the operation calls
    """

    def __init__(self, engine: Engine, suppliers: Sequence[Supplier], view: Callable[[], HostView]) -> None:
        self._engine = engine
        self._suppliers = tuple(suppliers)
        self.view = view

    def require_possible(self, instance: objects.Instance, wanted: Wanted, view: HostView) -> None:
        for supplier in self._suppliers:
            supplier.require_possible(instance, wanted, view)

    @contextlib.contextmanager
    def expecting(self, instance: objects.Instance, wanted: Wanted) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for supplier in self._suppliers:
                stack.enter_context(supplier.expecting(instance, wanted))
            yield

    def put_on(self, context: Any, instance: objects.Instance, wanted: Wanted, view: HostView) -> tuple[Part, ...]:
        """On an error the caller takes off what is on already."""
        return tuple(part for supplier in self._suppliers for part in supplier.put_on(context, instance, wanted, view))

    def refit(self, context: Any, instance: objects.Instance, wanted: Wanted, view: HostView) -> tuple[Part, ...]:
        """Bring a stopped container up to date with what its server is to have."""
        with self.expecting(instance, wanted):
            parts = self.put_on(context, instance, wanted, view)
            self._engine.refit(instance.name, parts)
        self.trim(instance, parts, view)
        return parts

    def trim(self, instance: objects.Instance, parts: Sequence[Part], view: HostView) -> None:
        container = first_process(self._engine, instance.name)
        for supplier in self._suppliers:
            supplier.trim(instance, parts, container, view)

    def start(self, instance: objects.Instance, parts: Sequence[Part]) -> None:
        """Start the container; one that sees more or less than it was granted is ended again.

        :raises NotAsGranted: and it does not run
        """
        name = instance.name
        if configdrive.required(instance):
            configdrive.let_read(instance.uuid, self._engine.root_ids(name)[0])
        self._engine.start(name)
        grants = grants_of(parts)
        if not grants:
            return
        try:
            self._engine.verify(name, grants)
        except BaseException:
            self._engine.stop(name, timeout=KILL_LIMIT, force=True)
            raise

    def take_off(self, context: Any, instance: objects.Instance, wanted: Wanted, view: HostView) -> None:
        """One supplier that fails keeps no other from taking off; the first error is raised at the end."""
        failures = []
        for supplier in reversed(self._suppliers):
            try:
                supplier.take_off(context, instance, wanted, view)
            except Exception as error:
                LOG.exception("%s are not all returned", type(supplier).__name__, instance=instance)
                failures.append(error)
        if failures:
            raise failures[0]

    def fit_back(self, instance: objects.Instance, wanted: Wanted) -> None:
        for supplier in self._suppliers:
            supplier.fit_back(instance, wanted)

    def reset_devices(self, instance: objects.Instance, view: HostView) -> None:
        for supplier in self._suppliers:
            supplier.reset_devices(instance, view)

    def end(self, server: str) -> None:
        for supplier in self._suppliers:
            supplier.end(server)

    def pause(self, instance: objects.Instance) -> None:
        for supplier in self._suppliers:
            supplier.pause(instance)

    def resume(self, instance: objects.Instance) -> None:
        for supplier in self._suppliers:
            supplier.resume(instance)

    def reconcile(self, alive: Collection[ContainerState]) -> None:
        """A supplier that fails keeps no server from being served."""
        for supplier in self._suppliers:
            try:
                supplier.reconcile(alive)
            except (errors.ContainerHostError, OSError):
                LOG.exception("%s of servers that are gone could not all be returned", type(supplier).__name__)
