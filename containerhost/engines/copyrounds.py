# SPDX-License-Identifier: Apache-2.0
"""Decide how often a running container is copied before it is stopped for its last changes. Pure."""

ROUNDS = 5
SHORT_ROUND = 2.0  # s: what is left is not worth another round
SHRINKS = 0.7  # of the time of the round before, at most: else the container changes as fast as it is copied


def is_last(took: float, before: float) -> bool:
    """Return whether another round would bring few further changes.

    :param took: seconds of this round
    :param before: seconds of the round before it; infinite for the first one
    """
    return took < SHORT_ROUND or took > SHRINKS * before
