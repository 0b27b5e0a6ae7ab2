# SPDX-License-Identifier: Apache-2.0
"""Define the errors of a driver of OpenNebula, each with the exit status of its program."""


class DriverError(Exception):
    """Signal any error of this package. The message appears in the VM's log."""

    status = 1


class BadInput(DriverError):
    """Report that input of oned or of a tenant is incomplete or invalid; nothing was changed."""

    status = 2


class NotSupported(DriverError):
    """Signal that this driver does not support the action, or an attribute of the template; nothing was changed."""

    status = 3
