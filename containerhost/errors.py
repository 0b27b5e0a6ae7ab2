# SPDX-License-Identifier: Apache-2.0
"""Every error containerhost raises, told for the person who reads it.

A message says what was asked, what was found and what to do about it. Drivers map these classes onto their
cloud's own errors in one place each; they never parse a message.
"""


class ContainerHostError(Exception):
    """Root of all errors of this package."""


class DeviceError(ContainerHostError):
    """A device cannot be handed out; nothing was changed."""


class DeviceNotFound(DeviceError):
    """The address names nothing in this host's inventory."""


class DeviceUnhealthy(DeviceError):
    """The device is there, but its health has at least one complaint."""


class DeviceHeld(DeviceError):
    """Another container holds the device, a slice of it, or the function it belongs to."""


class DeviceBusy(DeviceHeld):
    """Another process prepares or cleans the device and does not come to an end."""


class DeviceInUse(DeviceError):
    """A process in the container uses what is to be taken away."""


class NotDrained(DeviceError):
    """Containers still have the device, though nobody new is given it."""


class AllocationsUnreadable(DeviceError):
    """The allocation records cannot be trusted, so nothing is handed out until they can (fail closed)."""


class ScrubFailed(DeviceError):
    """A device came back but could not be cleaned; it is marked and not reused."""


class HostActionFailed(DeviceError):
    """The kernel or a host tool refused a step on a device. Its own words are in the message."""


class ResetRefused(HostActionFailed):
    """A driver refuses to reset a device. The message begins with the remedy, in at most 100 characters."""


class SpecError(ContainerHostError):
    """A container specification asks for something that cannot be; nothing was changed."""


class UnsupportedOnHost(SpecError):
    """This host cannot give what a container specification asks for; another host may. Nothing was changed."""


class NoPlacement(SpecError):
    """This host has not the free devices that are asked for. The message shows the arithmetic."""


class EngineError(ContainerHostError):
    """A container engine refused or failed a request. Its own words are in the message."""


class EngineUnavailable(EngineError):
    """The engine does not answer: not running, restarting, or refusing the connection."""


class OperationForgotten(EngineUnavailable):
    """The engine does not know a background operation any more: it ended while nobody waited, well or not, or it went
    with the daemon. What it was to change tells how it ended."""


class EngineTimeout(EngineError):
    """The engine did not finish within the time limit; whether it will is unknown."""


class EngineNotFound(EngineError):
    """The engine knows no object of that name."""


class EngineConflict(EngineError):
    """The object changed since it was read, or exists already."""


class NotAsGranted(EngineError):
    """A running container sees more or less than its grants say."""


class EngineBusy(EngineConflict):
    """Another operation on the object has not ended yet."""


class StorageFull(EngineError):
    """The storage pool has no room for what was asked."""
