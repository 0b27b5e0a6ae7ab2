# SPDX-License-Identifier: Apache-2.0
"""Define the kinds of affinity: how the containers of a job are bound to cores and memory."""

import enum


class Affinity(enum.StrEnum):
    """Name the kinds of CPU and memory binding.

    ``any``: no binding; ``cpu``: exclusive cores, an equal share of every socket; ``cpumem``: exclusive cores and
    the memory of one NUMA node, or of one socket if no node has room; ``cpumempin``: the same, and a binding for
    each rank.
    """

    ANY = "any"
    CPU = "cpu"
    CPUMEM = "cpumem"
    CPUMEMPIN = "cpumempin"
