# SPDX-License-Identifier: Apache-2.0
"""Describe hpcjob's errors to the person who reads them: what was asked, what was found, what to do. No secrets."""


class JobError(Exception):
    """Root of all errors of this package."""


class BadJob(JobError):
    """Signal that the job file, or what it names in the cloud, is not what it must be. Nothing was made."""


class GangFailed(JobError):
    """Signal that a member could not be started. What was made is removed."""


class Leftover(JobError):
    """Report that something created could not be removed. The message names it and the command that removes it."""
