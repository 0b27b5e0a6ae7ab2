# SPDX-License-Identifier: Apache-2.0
"""Define every error that containerhost raises, worded for the person who reads it.

A message says what was asked, what was found and what to do about it. Drivers map these classes onto their
cloud's own errors in one place each; they never parse a message.
"""


class ContainerHostError(Exception):
    """Root of all errors of this package."""


class DeviceError(ContainerHostError):
    """Signal that a device cannot be handed out; nothing was changed."""


class DeviceNotFound(DeviceError):
    """Signal that the address names nothing in this host's inventory."""


class DeviceUnhealthy(DeviceError):
    """Signal that the device is there, but its health has at least one complaint."""


class DeviceHeld(DeviceError):
    """Signal that another container holds the device, a slice of it, or the function it belongs to."""


class DeviceBusy(DeviceHeld):
    """Signal that another process prepares or cleans the device and does not come to an end."""


class DeviceInUse(DeviceError):
    """Signal that a process in the container uses what is to be taken away."""


class NotDrained(DeviceError):
    """Signal that containers still have the device, though nobody new is given it."""


class AllocationsUnreadable(DeviceError):
    """Signal that the allocation records cannot be trusted, so nothing is handed out until they can (fail closed)."""


class ScrubFailed(DeviceError):
    """Signal that a device came back but could not be cleaned; it is marked and not reused."""


class HostActionFailed(DeviceError):
    """Signal that the kernel or a host tool refused a step on a device. Its own words are in the message."""


class ResetRefused(HostActionFailed):
    """Signal that a driver refuses to reset a device. The message begins with the remedy, in at most 100 characters."""


class SpecError(ContainerHostError):
    """Signal that a container specification asks for something that cannot be; nothing was changed."""


class UnsupportedOnHost(SpecError):
    """Signal that this host cannot give what a container specification asks for; another may. Nothing was changed."""


class NoPlacement(SpecError):
    """Signal that this host lacks the requested free devices. The message shows the arithmetic."""


class EngineError(ContainerHostError):
    """Signal that a container engine refused or failed a request. Its own words are in the message."""


class EngineUnavailable(EngineError):
    """Signal that the engine does not answer: not running, restarting, or refusing the connection."""


class OperationForgotten(EngineUnavailable):
    """Signal that the engine does not know a background operation: it finished, or the daemon restarted.

    What the operation was to change tells how it ended.
    """


class EngineTimeout(EngineError):
    """Signal that the engine did not finish within the time limit; whether it will is unknown."""


class EngineNotFound(EngineError):
    """Signal that the engine knows no object of that name."""


class EngineConflict(EngineError):
    """Signal that the object changed since it was read, or exists already."""


class EngineChanged(EngineConflict):
    """Signal that the object changed since it was read."""


class NotAsGranted(EngineError):
    """Signal that a running container sees more or less than its grants say."""


class EngineBusy(EngineConflict):
    """Another operation on the object has not ended yet."""


class StorageFull(EngineError):
    """Signal that the storage pool has no room for what was asked."""
