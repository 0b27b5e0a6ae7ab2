# SPDX-License-Identifier: Apache-2.0
"""Define the valid values of this driver's flavor keys (entry point ``nova.api.extra_spec_validators``).

A key is defined here only if nova has none. Nova refuses every other ``lxd:`` and ``hpc:`` key, so that misspelt
keys are detected.
"""

from typing import Any

from nova.api.validation.extra_specs import base

from containerhost.devices.grants import GPU_CAPABILITIES
from hpcplan.affinity import Affinity

LIVE_RESIZE = PREFERRED, REQUIRED = ("preferred", "required")

LIVE_MIGRATION = RESTART, REFUSED = ("restart", "refused")

SHARED_MEMORY = "hpc:shared_memory"
VF_RATE = "lxd:vf_max_tx_rate"

ELASTIC = VCPUS_MIN, VCPUS_MAX, MEMORY_MIN, MEMORY_MAX, ELASTIC_PRIORITY = (
    "hpc:vcpus_min", "hpc:vcpus_max", "hpc:memory_min", "hpc:memory_max", "hpc:elastic_priority")

GPUS_MIN = "hpc:gpus_min"

_CAPABILITY = "|".join(GPU_CAPABILITIES)

def _key(name: str, kind: type, description: str, values: str, **limits: Any) -> base.ExtraSpecValidator:
    return base.ExtraSpecValidator(name=name, description=description,
                                   value={"type": kind, "description": values, **limits})


EXTRA_SPEC_VALIDATORS = [
    _key("lxd:nested_allowed", bool,
         "Whether containers may be run inside the container.",
         "Whether nesting is allowed; not when absent."),
    _key("lxd:privileged_allowed", bool,
         "Whether root in the container is root of the host. Only obeyed on hosts whose operator set ``[lxd] "
         "allow_privileged``; refused elsewhere.",
         "Whether the container is privileged; not when absent."),
    _key("lxd:isolated", bool,
         "Whether the container has user and group ids of the host that no other container has.",
         "Whether ids are isolated; ``[lxd] isolated`` when absent."),
    _key("lxd:gpu_capabilities", str,
         "NVIDIA driver capabilities whose libraries the container's GPUs bring along, as in "
         "NVIDIA_DRIVER_CAPABILITIES.",
         f"One or more of {', '.join(GPU_CAPABILITIES)}, separated by commas; or none.",
         pattern=rf"none|({_CAPABILITY})(,({_CAPABILITY}))*"),
    _key("lxd:process_limit", int,
         "Most processes and threads that the container has at once.",
         "A number; ``[lxd] process_limit`` when absent.", min=1),
    _key(VF_RATE, int,
         "What each virtual function of an Ethernet card that the container has may send, limited by the card.",
         "Mbit/s; no limit when absent.", min=1),
    _key("hpc:affinity", str,
         "Which cores and memory nodes the container is bound to, chosen by its host.",
         "any: none (also when absent). cpu: cores of its own, an equal share of every socket. cpumem: cores of its "
         "own and memory of one NUMA node or socket, that of its devices if it can be. cpumempin: the same, and a "
         "core for each MPI process.", enum=list(Affinity)),
    _key("lxd:live_resize", str,
         "Whether a running server gets this flavor only while its processes keep running.",
         "required: a resize that would stop the server is refused; preferred (also when absent): then it is stopped "
         "and started again.", enum=list(LIVE_RESIZE)),
    _key("lxd:live_migration", str,
         "Whether a live migration may restart the server.",
         "restart: it is copied while it runs, stopped for seconds and started on its new host; refused: a live "
         "migration is refused. ``[lxd] live_migration`` of the new host when absent.", enum=list(LIVE_MIGRATION)),
    _key(SHARED_MEMORY, int,
         "Size of the /dev/shm that the container has in common with those containers on its host that are in the "
         "same server group.",
         "MiB, at most the flavor's memory; a /dev/shm of its own when absent.", min=1),
    _key(VCPUS_MIN, int,
         "Fewest cores that the container keeps while the elastic service of its host divides cores among the "
         "containers that opted in by this key or the next ones.",
         "A number, at most the flavor's vCPUs; these when absent.", min=1),
    _key(VCPUS_MAX, int,
         "Most cores that the container gets of the elastic service.",
         "A number, at most the flavor's vCPUs; these when absent.", min=1),
    _key(MEMORY_MIN, int,
         "Least memory that the container keeps while the elastic service of its host divides memory.",
         "MiB, at most the flavor's memory; this when absent.", min=16),
    _key(MEMORY_MAX, int,
         "Most memory that the container gets of the elastic service.",
         "MiB, at most the flavor's memory; this when absent.", min=16),
    _key(GPUS_MIN, int,
         "Whole GPUs that the container keeps while the elastic service of its host takes those that are sick or "
         "tainted. All stay allocated to it.",
         "A number, at most the flavor's GPUs; the container keeps all of them when absent.", min=0),
    _key(ELASTIC_PRIORITY, int,
         "Which containers the elastic service serves first, where its policy is priority.",
         "0 to 10, which is served first; 5 when absent.", min=0, max=10),
]


def register() -> list[base.ExtraSpecValidator]:
    return EXTRA_SPEC_VALIDATORS
