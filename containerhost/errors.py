# SPDX-License-Identifier: Apache-2.0
"""Define every error that containerhost raises, worded for the person who reads it.

A message states the request, the problem and the remedy. Drivers map these classes onto their
cloud's own errors in one place each; they never parse a message.
"""


class ContainerHostError(Exception):
    """Signal any error of this package."""


class DeviceError(ContainerHostError):
    """Signal that a device cannot be handed out; nothing was changed."""


class DeviceNotFound(DeviceError):
    """Signal that the address is not in this host's inventory."""


class DeviceUnhealthy(DeviceError):
    """Signal that the device exists, but is not healthy."""


class DeviceHeld(DeviceError):
    """Signal that another container holds the device, a slice of it, or the function it belongs to."""


class DeviceBusy(DeviceHeld):
    """Signal that another process prepares or cleans the device and does not finish."""


class DeviceInUse(DeviceError):
    """Signal that a process in the container uses what would be detached."""


class NotDrained(DeviceError):
    """Signal that containers still have the device, although no new one gets it."""


class AllocationsUnreadable(DeviceError):
    """Signal that the allocation records cannot be trusted, so nothing is allocated until they can (fail closed)."""


class ScrubFailed(DeviceError):
    """Signal that a returned device could not be cleaned; it is marked and not reused."""


class HostActionFailed(DeviceError):
    """Signal that the kernel or a host tool refused an action. The message includes theirs."""


class ResetRefused(HostActionFailed):
    """Signal that a driver refuses to reset a device. The message begins with the remedy, in at most 100 characters."""


class SpecError(ContainerHostError):
    """Signal that a container specification is invalid; nothing was changed."""


class UnsupportedOnHost(SpecError):
    """Signal that this host does not support a container specification; another may. Nothing was changed."""


class NoPlacement(SpecError):
    """Signal that this host lacks the requested free devices. The message shows the arithmetic."""


class EngineError(ContainerHostError):
    """Signal that a container engine refused or failed a request. The message includes the engine's."""


class EngineUnavailable(EngineError):
    """Signal that the engine does not respond: not running, restarting, or refusing the connection."""


class OperationForgotten(EngineUnavailable):
    """Signal that the engine no longer knows a background operation: it finished, or the daemon restarted.

    Its target shows how it ended.
    """


class EngineTimeout(EngineError):
    """Signal that the engine did not finish within the time limit, and may still finish later."""


class EngineNotFound(EngineError):
    """Signal that the engine has no object of that name."""


class EngineConflict(EngineError):
    """Signal that the object has changed since it was read, or already exists."""


class EngineChanged(EngineConflict):
    """Signal that the object has changed since it was read."""


class NotAsGranted(EngineError):
    """Signal that a running container sees more or less than its grants permit."""


class EngineBusy(EngineConflict):
    """Signal that another operation on the object has not ended yet."""


class StorageFull(EngineError):
    """Signal that the storage pool has no room for the request."""
