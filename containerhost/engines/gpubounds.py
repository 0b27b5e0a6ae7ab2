# SPDX-License-Identifier: Apache-2.0
"""Define how many of its GPUs a container can lose, as the cloud's driver marks it. Pure.

The mark is a label of the driver: a JSON object with ``version``, ``least`` (GPUs that it keeps) and ``libraries``
(capabilities of the GPUs' driver, as in GrantOptions). The maximum is the cloud's claim, which is in the allocation
records.
"""

import dataclasses
import json
from collections.abc import Mapping

from containerhost.devices.grants import GPU_CAPABILITIES
from containerhost.engines import marks
from containerhost.engines.spec import ContainerSpec
from containerhost.linux import records

LABEL = "containerhost.elastic.gpus"
VERSION = 1
MOST = 999  # more GPUs than any host has


@dataclasses.dataclass(frozen=True)
class GpuBounds:
    """Define how many of a container's GPUs the elastic service must keep, even if faulty ones are detached.

    :ivar libraries: the driver's libraries that come with a GPU
    """

    least: int
    libraries: frozenset[str] = frozenset()


def mark(bounds: GpuBounds) -> str:
    return json.dumps({records.VERSION: VERSION, "least": bounds.least, "libraries": sorted(bounds.libraries)},
                      sort_keys=True)


def parse(labels: Mapping[str, str]) -> GpuBounds | None:
    """Return the bounds of a container; None for one that did not opt in.

    :raises ValueError: this release does not support its mark
    """
    found = marks.read(labels, LABEL, lambda found: GpuBounds(found["least"], frozenset(found["libraries"])))
    if found is None:
        return None
    if type(found.least) is not int or not 0 <= found.least <= MOST or not found.libraries <= set(GPU_CAPABILITIES):
        raise marks.contradiction(labels, LABEL)
    return found


def marked(spec: ContainerSpec, bounds: GpuBounds | None) -> ContainerSpec:
    return spec if bounds is None else dataclasses.replace(spec, labels=dict(spec.labels) | {LABEL: mark(bounds)})
