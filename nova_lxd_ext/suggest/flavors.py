# SPDX-License-Identifier: Apache-2.0
"""Suggest flavors for the devices of a host, and write them for tools that create flavors. Pure."""

import dataclasses
import shlex
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import yaml

from containerhost.devices.model import PARTS
from containerhost.operator.suggest.sizes import Size
from nova_lxd_ext.hardware.sliceproviders import resource_class
from nova_lxd_ext.suggest.pcisection import numa_policy

PREFIX = "hpc."
_MIB = 1 << 20
_HEAT_VERSION = "2021-04-16"  # wallaby: the latest version


@dataclasses.dataclass(frozen=True)
class Flavor:
    """Describe a suggested flavor for a host's devices.

    :ivar ram: MiB
    :ivar disk: GiB
    """

    name: str
    vcpus: int
    ram: int
    disk: int
    extra_specs: Mapping[str, str]


def flavors(found: Iterable[Size], disk: int) -> tuple[Flavor, ...]:
    """Return a flavor for each size.

    :param disk: GiB of the root disk of each
    """
    return tuple(Flavor(PREFIX + size.name, size.cpus, size.memory // _MIB, disk, specs)
                 for size in found if (specs := _extra_specs(size)))


def _extra_specs(size: Size) -> dict[str, str]:
    """Return the extra specs; none if the driver does not report the slice's profile."""
    specs: dict[str, str] = {}
    whole = [(offer, count) for offer, count in size.devices if offer.first.kind not in PARTS]
    for offer, count in size.devices:
        name = resource_class(offer.first)
        if name:
            specs[f"resources:{name}"] = str(count)
    if whole:
        specs["pci_passthrough:alias"] = ",".join(f"{offer.name}:{count}" for offer, count in whole)
        if size.near:
            policies = {numa_policy(offer) for offer, _ in whole}
            specs |= {"hw:numa_nodes": "1", "hw:pci_numa_affinity_policy": min(policies)}
    return specs


def openstack(found: Iterable[Flavor]) -> str:
    """Write the commands of the OpenStack client."""
    return "\n".join(" ".join((
        "openstack flavor create", shlex.quote(flavor.name), f"--vcpus {flavor.vcpus} --ram {flavor.ram}",
        f"--disk {flavor.disk}", *(f"--property {shlex.quote(f'{key}={value}')}"
                                   for key, value in flavor.extra_specs.items())))
        for flavor in found)


def ansible(found: Iterable[Flavor]) -> str:
    """Write tasks with the module compute_flavor of the collection openstack.cloud."""
    return _yaml([{"name": f"Flavor {flavor.name}", "openstack.cloud.compute_flavor": {
        "state": "present", "name": flavor.name, "vcpus": flavor.vcpus, "ram": flavor.ram, "disk": flavor.disk,
        "extra_specs": dict(flavor.extra_specs)}} for flavor in found])


def heat(found: Iterable[Flavor]) -> str:
    """Write a template of Heat (resource OS::Nova::Flavor)."""
    return _yaml({"heat_template_version": _HEAT_VERSION, "resources": {
        flavor.name.replace(".", "_"): {"type": "OS::Nova::Flavor", "properties": {
            "name": flavor.name, "vcpus": flavor.vcpus, "ram": flavor.ram, "disk": flavor.disk,
            "extra_specs": dict(flavor.extra_specs)}} for flavor in found}})


def _yaml(content: Any) -> str:
    return yaml.safe_dump(content, sort_keys=False, width=1000).rstrip("\n")


WRITERS: Mapping[str, Callable[[Iterable[Flavor]], str]] = {"openstack": openstack, "ansible": ansible, "heat": heat}
