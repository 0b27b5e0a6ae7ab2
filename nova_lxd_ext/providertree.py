# SPDX-License-Identifier: Apache-2.0
"""Share the common parts of all providers that this driver writes into nova's view of Placement. Pure."""

from typing import Any

from nova.compute.provider_tree import ProviderTree


def entry(total: int, *, reserved: int = 0, max_unit: int | None = None, ratio: float = 1.0) -> dict[str, Any]:
    """Return an inventory of one resource class (Placement's API, PUT /resource_providers/{uuid}/inventories).

    :param reserved: number of ``total`` that cannot be allocated
    :param max_unit: maximum for one server; None for all
    """
    return {"total": total, "reserved": reserved, "min_unit": 1, "max_unit": total if max_unit is None else max_unit,
            "step_size": 1, "allocation_ratio": ratio}


def names(tree: ProviderTree, nodename: str, *prefixes: str) -> set[str]:
    """Return the names of the providers below the host that begin with one of ``prefixes``."""
    found = (tree.data(provider).name for provider in tree.get_provider_uuids(nodename))
    return {name for name in found if name.startswith(prefixes)}
