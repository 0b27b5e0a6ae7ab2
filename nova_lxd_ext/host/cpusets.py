# SPDX-License-Identifier: Apache-2.0
"""Read the host CPUs that nova may use: ``[compute] cpu_shared_set`` and ``cpu_dedicated_set``."""

import dataclasses

from nova import exception
from nova.virt import hardware

EMPTY: frozenset[int] = frozenset()


@dataclasses.dataclass(frozen=True)
class CpuSets:
    """Hold the host CPUs that nova may give to servers.

    :ivar shared: CPUs of unpinned servers (resource class VCPU)
    :ivar dedicated: CPUs that pinned servers get exclusively (PCPU)
    """

    shared: frozenset[int]
    dedicated: frozenset[int]

    @property
    def all(self) -> frozenset[int]:
        return self.shared | self.dedicated


def configured(online: frozenset[int]) -> CpuSets:
    """Return the operator's assignment of this host's ``online`` CPUs; all are shared by default.

    :raises Invalid: a set names CPUs that are not online, or both sets overlap
    """
    shared = _online("cpu_shared_set", hardware.get_cpu_shared_set(), online)
    dedicated = _online("cpu_dedicated_set", hardware.get_cpu_dedicated_set(), online)
    both = (shared or EMPTY) & (dedicated or EMPTY)
    if both:
        raise exception.Invalid(
            f"[compute]cpu_shared_set and cpu_dedicated_set both name CPUs {hardware.format_cpu_spec(set(both))}; "
            "give each CPU one use")
    if shared is None:
        shared = online if dedicated is None else EMPTY
    return CpuSets(shared, dedicated or EMPTY)


def _online(option: str, wanted: set[int] | None, online: frozenset[int]) -> frozenset[int] | None:
    if wanted is None:
        return None
    missing = wanted - online
    if missing:
        raise exception.Invalid(
            f"[compute]{option} names CPUs {hardware.format_cpu_spec(missing)}, which are not online; this host has "
            f"{hardware.format_cpu_spec(set(online))}")
    return frozenset(wanted)
