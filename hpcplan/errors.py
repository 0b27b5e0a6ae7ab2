# SPDX-License-Identifier: Apache-2.0
"""Define the errors of plans. A message says what was asked, what was found and what to do about it."""


class PlanError(Exception):
    """Report a request that no plan can meet."""


class NoPlacement(PlanError):
    """Report that the hosts lack room for all members of a job: none is placed. The message shows the arithmetic."""
