# SPDX-License-Identifier: Apache-2.0
"""Define hpcjob's errors. A message states the request, the problem and the remedy, without secrets."""


class JobError(Exception):
    """Signal any error of this package.

    :cvar status: of the command
    """

    status = 1


class BadJob(JobError):
    """Signal that the job file, or an object it names in the cloud, is invalid. Nothing was created."""


class GangFailed(JobError):
    """Signal that a member could not be started. Everything created was removed."""


class Leftover(JobError):
    """Report a created object that could not be removed. The message names it and the command that removes it."""


class Intact(JobError):
    """Signal that the member to replace is not broken. Nothing was changed."""

    status = 3


class Vacant(JobError):
    """Report that a rank may have no running member. The message has the command to continue."""

    status = 4
