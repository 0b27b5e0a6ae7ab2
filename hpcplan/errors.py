# SPDX-License-Identifier: Apache-2.0
"""Define the errors of plans. A message says what was asked, what was found and what to do about it."""


class PlanError(Exception):
    """A plan is asked for something that cannot be."""


class NoPlacement(PlanError):
    """The hosts have no room for all members of a job, so none is placed. The message shows the arithmetic."""
