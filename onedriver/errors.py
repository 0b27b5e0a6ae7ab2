# SPDX-License-Identifier: Apache-2.0
"""Define the errors of a driver of OpenNebula, each with the exit status of its program."""


class DriverError(Exception):
    """Root of this package's errors. The message is for the person who reads it in the VM's log."""

    status = 1


class BadInput(DriverError):
    """Report that input of oned or of a tenant is incomplete or makes no sense; nothing was changed."""

    status = 2


class NotSupported(DriverError):
    """Signal that this driver does not support the action, or an attribute of the template; nothing was changed."""

    status = 3
