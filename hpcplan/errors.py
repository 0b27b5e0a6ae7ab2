# SPDX-License-Identifier: Apache-2.0
"""Define the errors of plans. A message states the request, the problem and the remedy."""


class PlanError(Exception):
    """Report a request without a possible plan."""


class NoPlacement(PlanError):
    """Report that the hosts lack room for all members of a job: none is placed. The message shows the arithmetic."""
