# SPDX-License-Identifier: Apache-2.0
"""Describe hpcjob's errors to the person who reads them: what was asked, what was found, what to do. No secrets."""


class JobError(Exception):
    """Root of all errors of this package.

    :cvar status: of the command
    """

    status = 1


class BadJob(JobError):
    """Signal that the job file, or what it names in the cloud, is not what it must be. Nothing was made."""


class GangFailed(JobError):
    """Signal that a member could not be started. What was made is removed."""


class Leftover(JobError):
    """Report that something created could not be removed. The message names it and the command that removes it."""


class Intact(JobError):
    """Signal that the member that was to be replaced is not broken. Nothing was changed."""

    status = 3


class Vacant(JobError):
    """Report that a rank may have no member that runs. The message has the command that goes on."""

    status = 4
