# SPDX-License-Identifier: Apache-2.0
"""Emulate Placement in memory."""

import copy
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

VCPU = "VCPU"


class Placement:
    """Nova's client of Placement, with the calls that nova-compute and the driver make.

    :ivar allocations: provider -> resources, by consumer
    :ivar moved_of_two: consumers whose allocations of several hosts became another's
    """

    def __init__(self, step: Callable[[], None]) -> None:
        self.allocations: dict[str, dict[str, Any]] = {}
        self.moved_of_two: set[str] = set()
        self._step = step

    def allocate(self, consumer: str, provider: str, vcpus: int) -> None:
        self.allocations.setdefault(consumer, {})[provider] = {"resources": {VCPU: vcpus}}

    def get_allocations_for_consumer(self, context: Any, consumer: str) -> dict[str, Any]:
        return copy.deepcopy(self.allocations.get(consumer, {}))

    def get_allocs_for_consumer(self, context: Any, consumer: str) -> dict[str, Any]:
        return {"allocations": self.get_allocations_for_consumer(context, consumer)}

    def get_allocations_for_resource_provider(self, context: Any, provider: str) -> Any:
        return SimpleNamespace(allocations={consumer: held[provider] for consumer, held in self.allocations.items()
                                            if provider in held})

    def move_allocations(self, context: Any, source: str, target: str) -> bool:
        self._step()
        self.allocations[target] = self.allocations.pop(source)
        if len(self.allocations[target]) > 1:
            self.moved_of_two.add(source)
        return True

    def delete_allocation_for_instance(self, context: Any, uuid: str, consumer_type: str = "instance",
                                       force: bool = False) -> bool:
        self._step()
        return self.allocations.pop(uuid, None) is not None

    def remove_provider_tree_from_instance_allocation(self, context: Any, uuid: str, provider: str) -> bool:
        self._step()
        held = self.allocations.get(uuid, {})
        held.pop(provider, None)
        if not held:
            self.allocations.pop(uuid, None)
        return True
