# SPDX-License-Identifier: Apache-2.0
"""Define what the API accepts for the flavor keys of this driver (entry point ``nova.api.extra_spec_validators``).

A key stands here only where nova has none. Nova refuses every other ``lxd:`` and ``hpc:`` key, so a typing
error does not go unseen.
"""

from nova.api.validation.extra_specs import base

from containerhost.devices.grants import GPU_CAPABILITIES
from hpcplan.affinity import Affinity

LIVE_RESIZE = PREFERRED, REQUIRED = ("preferred", "required")

SHARED_MEMORY = "hpc:shared_memory"
VF_RATE = "lxd:vf_max_tx_rate"

ELASTIC = VCPUS_MIN, VCPUS_MAX, MEMORY_MIN, MEMORY_MAX, ELASTIC_PRIORITY = (
    "hpc:vcpus_min", "hpc:vcpus_max", "hpc:memory_min", "hpc:memory_max", "hpc:elastic_priority")

GPUS_MIN = "hpc:gpus_min"

_CAPABILITY = "|".join(GPU_CAPABILITIES)

EXTRA_SPEC_VALIDATORS = [
    base.ExtraSpecValidator(
        name="lxd:nested_allowed",
        description="Whether containers may be run inside the container.",
        value={"type": bool, "description": "Whether nesting is allowed; not when absent."},
    ),
    base.ExtraSpecValidator(
        name="lxd:privileged_allowed",
        description="Whether root in the container is root of the host. Only obeyed on hosts whose operator set "
                    "``[lxd] allow_privileged``; refused elsewhere.",
        value={"type": bool, "description": "Whether the container is privileged; not when absent."},
    ),
    base.ExtraSpecValidator(
        name="lxd:isolated",
        description="Whether the container has user and group ids of the host that no other container has.",
        value={"type": bool, "description": "Whether ids are isolated; ``[lxd] isolated`` when absent."},
    ),
    base.ExtraSpecValidator(
        name="lxd:gpu_capabilities",
        description="NVIDIA driver capabilities whose libraries the container's GPUs bring along, "
                    "as in NVIDIA_DRIVER_CAPABILITIES.",
        value={
            "type": str,
            "description": f"One or more of {', '.join(GPU_CAPABILITIES)}, separated by commas; or none.",
            "pattern": rf"none|({_CAPABILITY})(,({_CAPABILITY}))*",
        },
    ),
    base.ExtraSpecValidator(
        name="lxd:process_limit",
        description="Most processes and threads that the container has at once.",
        value={"type": int, "min": 1, "description": "A number; ``[lxd] process_limit`` when absent."},
    ),
    base.ExtraSpecValidator(
        name=VF_RATE,
        description="What each virtual function of an Ethernet card that the container has may send, limited by the "
                    "card.",
        value={"type": int, "min": 1, "description": "Mbit/s; no limit when absent."},
    ),
    base.ExtraSpecValidator(
        name="hpc:affinity",
        description="Which cores and memory nodes the container is bound to, chosen by its host.",
        value={
            "type": str,
            "description": "any: none (also when absent). cpu: cores of its own, an equal share of every socket. "
                           "cpumem: cores of its own and memory of one NUMA node or socket, that of its devices if it "
                           "can be. cpumempin: the same, and a core for each MPI process.",
            "enum": list(Affinity),
        },
    ),
    base.ExtraSpecValidator(
        name="lxd:live_resize",
        description="Whether a running server gets this flavor only while its processes go on.",
        value={
            "type": str,
            "description": "required: a resize that would stop the server is refused; preferred (also when absent): "
                           "then it is stopped and started again.",
            "enum": list(LIVE_RESIZE),
        },
    ),
    base.ExtraSpecValidator(
        name=SHARED_MEMORY,
        description="Size of the /dev/shm that the container has in common with those containers on its host that are "
                    "in the same server group.",
        value={"type": int, "min": 1, "description": "MiB, at most the flavor's memory; a /dev/shm of its own when "
                                                     "absent."},
    ),
    base.ExtraSpecValidator(
        name=VCPUS_MIN,
        description="Fewest cores that the container keeps while the elastic service of its host divides cores among "
                    "the containers that opted in by this key or the next ones.",
        value={"type": int, "min": 1, "description": "A number, at most the flavor's vCPUs; these when absent."},
    ),
    base.ExtraSpecValidator(
        name=VCPUS_MAX,
        description="Most cores that the container gets of the elastic service.",
        value={"type": int, "min": 1, "description": "A number, at most the flavor's vCPUs; these when absent."},
    ),
    base.ExtraSpecValidator(
        name=MEMORY_MIN,
        description="Least memory that the container keeps while the elastic service of its host divides memory.",
        value={"type": int, "min": 16, "description": "MiB, at most the flavor's memory; this when absent."},
    ),
    base.ExtraSpecValidator(
        name=MEMORY_MAX,
        description="Most memory that the container gets of the elastic service.",
        value={"type": int, "min": 16, "description": "MiB, at most the flavor's memory; this when absent."},
    ),
    base.ExtraSpecValidator(
        name=GPUS_MIN,
        description="Whole GPUs that the container keeps while the elastic service of its host takes those that are "
                    "sick or tainted. All stay allocated to it.",
        value={"type": int, "min": 0, "description": "A number, at most the flavor's GPUs; the container keeps all of "
                                                     "them when absent."},
    ),
    base.ExtraSpecValidator(
        name=ELASTIC_PRIORITY,
        description="Which containers the elastic service serves first, where its policy is priority.",
        value={"type": int, "min": 0, "max": 10, "description": "0 to 10, which is served first; 5 when absent."},
    ),
]


def register() -> list[base.ExtraSpecValidator]:
    return EXTRA_SPEC_VALIDATORS
