# SPDX-License-Identifier: Apache-2.0
"""Maintain the document of a VM's resources, and ask the guest before a loss.

The document is a label of the container, and a file for its guest.

A container on Docker that an earlier version created has no document, and its guest is not asked: it gets the
document at its next start, but no file.
"""

import contextlib
import dataclasses
import logging
from collections.abc import Iterator, Sequence

from containerhost.devices.grants import Grant
from containerhost.engines import bounds, gpubounds
from containerhost.engines.contract import Containers, Status
from containerhost.engines.spec import ContainerSpec
from containerhost.errors import EngineError, EngineNotFound
from containerhost.guest import resources
from containerhost.guest.guestfiles import GuestFiles
from containerhost.guest.guestnotice import NOT_TOLD, GuestNotice
from containerhost.privileged import Privileged
from containerhost.rollback import Rollback

LOG = logging.getLogger(__name__)


class ResourceNotices:
    """Update the resource documents of containers, and ask guests before they lose resources.

    :param timeout: seconds that a listening guest has to release resources
    """

    def __init__(self, engine: Containers, timeout: float) -> None:
        self._engine = engine
        self._notice = GuestNotice(GuestFiles(engine.pid, Privileged()), timeout)

    def document(self, own: str) -> str | None:
        """Return the document of a container; None if it, or the container, does not exist."""
        try:
            return self._engine.container(own).labels.get(resources.LABEL)
        except EngineNotFound:
            return None

    def noted(self, spec: ContainerSpec) -> ContainerSpec:
        """Return the spec of a container that will be restarted, with the document among its labels."""
        return resources.with_document(spec, self.document(spec.name))

    def resized(self, spec: ContainerSpec) -> ContainerSpec:
        """Return the spec with the document of its new size, if the container has or needs a document."""
        before = self.document(spec.name)
        if before is None and not is_elastic(spec):
            return spec
        return dataclasses.replace(spec, labels=dict(spec.labels) | {resources.LABEL: sized(spec, before)})

    def tell(self, own: str) -> None:
        """Write its document into a running container. Failures are logged, because the change itself was made."""
        try:
            state = self._engine.container(own)
        except EngineError as error:
            LOG.warning(NOT_TOLD, own, error)
            return
        if state.status is Status.RUNNING and resources.LABEL in state.labels:
            self._notice.notify(own, state.labels[resources.LABEL])

    @contextlib.contextmanager
    def resizing(self, spec: ContainerSpec) -> Iterator[None]:
        """Ask the guest of a running container before the block changes its size, and notify it afterwards."""
        before = self.document(spec.name)
        with self._announced(spec.name, before, sized(spec, before)):
            yield
        self.tell(spec.name)

    @contextlib.contextmanager
    def losing(self, own: str, remaining: Sequence[Grant]) -> Iterator[None]:
        """Ask the guest before the block detaches a device, and notify it afterwards of the remaining ones."""
        before = self.document(own)
        coming = before and resources.with_devices(before, remaining)
        with self._announced(own, before, coming):
            yield
        self._record(own, before, coming)

    def devices(self, own: str, grants: Sequence[Grant]) -> None:
        """Update a container's document and its guest to its present devices. Idempotent."""
        before = self.document(own)
        self._record(own, before, before and resources.with_devices(before, grants))

    def _record(self, own: str, before: str | None, coming: str | None) -> None:
        if coming and coming != before:
            self._engine.relabel(own, {resources.LABEL: coming})
            self.tell(own)

    @contextlib.contextmanager
    def _announced(self, own: str, before: str | None, coming: str | None) -> Iterator[None]:
        with Rollback(f"change of {own}") as undo:
            if before and coming and self._notice.announce(own, before, coming):
                undo.on_error("what was announced", self._notice.notify, own, before)
            yield


def sized(spec: ContainerSpec, before: str | None) -> str:
    return resources.following(resources.of(spec) | resources.devices_in(before), before)


def is_elastic(spec: ContainerSpec) -> bool:
    """Return whether the elastic service may change the container."""
    return bounds.LABEL in spec.labels or gpubounds.LABEL in spec.labels
