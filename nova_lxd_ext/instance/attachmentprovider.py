# SPDX-License-Identifier: Apache-2.0
"""Declare what attaches one kind of part to containers: devices, interfaces, volumes, ephemeral disks, job memory."""

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

    Every method may be repeated. The view is that of the operation which the call is a part of.
    """

    def require_possible(self, instance: objects.Instance, requested: RequestedResources, view: HostView) -> None:
        """Refuse, before anything changes, what can never be."""

    def expecting(self, instance: objects.Instance, requested: RequestedResources) -> AbstractContextManager[None]:
        """Wait at the end of the block, around the attachment, for what others must confirm."""
        return contextlib.nullcontext()

    def attach_all(self, instance: objects.Instance, requested: RequestedResources, view: HostView) -> tuple[Part, ...]:
        """Prepare the parts on the host; what the server has already stays as it is."""
        raise NotImplementedError(f"{type(self).__name__}.attach_all")

    def starting(self, instance: objects.Instance) -> None:
        """Prepare what needs the container, which is about to start."""

    def release_unused(self, instance: objects.Instance, parts: Sequence[Part], container: int | None,
                       view: HostView) -> None:
        """Release what the server has beside ``parts``: its container, running or not, does not have it any more.

        :param container: its first process; None when it does not run
        """

    def release_all(self, instance: objects.Instance, requested: RequestedResources, view: HostView) -> None:
        """Release all that a server, stopped or without container, has here, named in ``requested`` or not."""
        raise NotImplementedError(f"{type(self).__name__}.release_all")

    def revert_resize(self, instance: objects.Instance, requested: RequestedResources) -> None:
        """Release what only the other size had. The size is reverted, and the container is stopped and has no parts."""

    def reset_devices(self, instance: objects.Instance, view: HostView) -> None:
        """Repair what is broken of the server's devices. Its container is stopped, and about to start again."""

    def end(self, server: str) -> None:
        """Remove what lives as long as the container, which is gone for good.

        :param server: its uuid
        """

    def stopped(self, instance: objects.Instance) -> None:
        """Clean what could not be cleaned while the container ran. An error is logged: the server is off."""

    def pause(self, instance: objects.Instance) -> None:
        """Stop what would go on without the frozen container."""

    def resume(self, instance: objects.Instance) -> None:
        """Undo :meth:`pause`: the container is about to go on."""

    def reconcile(self, alive: Collection[ContainerState]) -> None:
        """Release, at the driver's start, what servers have that are not among ``alive``."""
