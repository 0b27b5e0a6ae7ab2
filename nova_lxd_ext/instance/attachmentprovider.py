# SPDX-License-Identifier: Apache-2.0
"""Declare the provider of one kind of part of containers: devices, interfaces, volumes, disks, job memory."""

import contextlib
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager

from nova import objects

from containerhost.engines.contract import ContainerState
from containerhost.engines.spec import Part
from containerhost.inventory.scan import HostView
from nova_lxd_ext.instance.requested import RequestedResources


class AttachmentProvider:
    """Attach one kind of part to servers' containers, and release it.

    Every method is idempotent. The view is that of the enclosing operation.
    """

    def require_possible(self, instance: objects.Instance, requested: RequestedResources, view: HostView) -> None:
        """Refuse impossible requests before any change."""

    def expecting(self, instance: objects.Instance, requested: RequestedResources) -> AbstractContextManager[None]:
        """Wait at the end of the block, around the attachment, for confirmation by other services."""
        return contextlib.nullcontext()

    def attach_all(self, instance: objects.Instance, requested: RequestedResources, view: HostView) -> tuple[Part, ...]:
        """Prepare the parts on the host; parts that the server already has stay unchanged."""
        raise NotImplementedError(f"{type(self).__name__}.attach_all")

    def starting(self, instance: objects.Instance) -> None:
        """Prepare what needs the container, which is about to start."""

    def release_unused(self, instance: objects.Instance, parts: Sequence[Part], container: int | None,
                       view: HostView) -> None:
        """Release the server's parts other than ``parts``, which its container, running or not, no longer has.

        :param container: its first process; None if it is not running
        """

    def release_all(self, instance: objects.Instance, requested: RequestedResources, view: HostView) -> None:
        """Release all parts of a server, stopped or without container, on this host, in ``requested`` or not."""
        raise NotImplementedError(f"{type(self).__name__}.release_all")

    def revert_resize(self, instance: objects.Instance, requested: RequestedResources) -> None:
        """Release the parts of the other size only, after a revert. The container is stopped and has no parts."""

    def reset_devices(self, instance: objects.Instance, view: HostView) -> None:
        """Repair the server's faulty devices. Its container is stopped, and about to start again."""

    def end(self, server: str) -> None:
        """Remove what exists as long as the container, which has been deleted."""

    def stopped(self, instance: objects.Instance) -> None:
        """Clean what could not be cleaned while the container ran. An error is only logged."""

    def pause(self, instance: objects.Instance) -> None:
        """Stop what would continue without the frozen container."""

    def resume(self, instance: objects.Instance) -> None:
        """Undo :meth:`pause` before the container is thawed."""

    def reconcile(self, alive: Collection[ContainerState]) -> None:
        """Release, at the driver's start, the parts of servers that are not among ``alive``."""
