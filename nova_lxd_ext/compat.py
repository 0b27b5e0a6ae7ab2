"""Where nova has no public way, and where its releases differ: the one place that knows."""

from collections.abc import Callable
from typing import Any

from nova import context as nova_context
from nova import objects
from nova.virt.driver import ComputeDriver


def pci_tracker(virtapi: Any) -> Any:
    """Nova's PciDevTracker; None before nova-compute first looked at its host (and in tests without nova-compute)."""
    manager = getattr(virtapi, "_compute", None)
    return manager.rt.pci_tracker if manager is not None else None


def process_instances_at_startup(host: str, process: Callable[[Any, objects.InstanceList], Any]) -> None:
    """Nova 34 shows a driver the host's servers before it does anything with them itself; nova 33 does not."""
    if hasattr(ComputeDriver, "process_instances_at_startup"):
        return
    context = nova_context.get_admin_context()
    process(context, objects.InstanceList.get_by_host(context, host, expected_attrs=["info_cache", "metadata"]))
