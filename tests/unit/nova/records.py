# SPDX-License-Identifier: Apache-2.0
"""Nova's objects as a compute host has them in memory, for tests: no database behind them."""

from typing import Any
from unittest import mock

from nova import context, objects
from nova.compute import task_states, vm_states

UUID = "8f2b6a0c-5c56-4b0e-9b5e-0a6f1f6d9a01"
PROJECT = "6f70656e737461636b206973206675"
NODE = 7  # nova's number of this host
IMAGE = "155d900f-4e14-4e4c-a73d-069cbf4541e6"


def flavor(extra_specs: dict[str, str] | None = None, **changes: Any) -> objects.Flavor:
    values: dict[str, Any] = {"id": 1, "flavorid": "hpc", "name": "hpc.gpu1.ib1", "vcpus": 2, "memory_mb": 512,
                              "root_gb": 4, "ephemeral_gb": 0, "swap": 0}
    return objects.Flavor(extra_specs=extra_specs or {}, **values | changes)


def instance(*claims: tuple[str, str], extra_specs: dict[str, str] | None = None, flavor_changes: Any = None,
             **changes: Any) -> objects.Instance:
    """A server whose flavor asked for the alias of each claim ``(alias, address)``, one request per alias."""
    request_ids = {alias: f"00000000-0000-4000-8000-{place:012x}"
                   for place, alias in enumerate(dict.fromkeys(alias for alias, _ in claims))}
    values: dict[str, Any] = {
        "id": 42, "uuid": UUID, "hostname": "train-1", "display_name": "train 1", "project_id": PROJECT,
        "user_id": "tenant", "image_ref": IMAGE, "key_name": None, "key_data": None, "user_data": None,
        "vm_state": vm_states.BUILDING, "task_state": task_states.SPAWNING, "config_drive": "", "launched_at": None,
        "system_metadata": {"image_min_disk": "0"}, "metadata": {}, "numa_topology": None, "progress": 0,
        "trusted_certs": None,
        "flavor": flavor(**{"extra_specs": extra_specs, **(flavor_changes or {})}),
        "pci_requests": objects.InstancePCIRequests(instance_uuid=UUID, requests=[
            objects.InstancePCIRequest(request_id=request_id, alias_name=alias, count=1, spec=[])
            for alias, request_id in request_ids.items()]),
        "pci_devices": objects.PciDeviceList(objects=[
            objects.PciDevice(address=address, request_id=request_ids[alias], compute_node_id=NODE)
            for alias, address in claims]),
    }
    server = objects.Instance(context=context.get_admin_context(), **values | changes)
    server.obj_reset_changes()
    server.save = mock.Mock()  # there is no database
    return server


def numa(*cells: dict[str, Any]) -> objects.InstanceNUMATopology:
    defaults: dict[str, Any] = {"cpuset": set(), "pcpuset": set(), "memory": 512, "pagesize": None,
                                "cpu_pinning_raw": None}
    return objects.InstanceNUMATopology(cells=[objects.InstanceNUMACell(**defaults | cell) for cell in cells])
