# SPDX-License-Identifier: Apache-2.0
"""Report the host as a resource provider in Placement: its inventory and its traits.

PCI devices are excluded: nova reports them to Placement itself (``[pci] report_in_placement``).
"""

from typing import Any

import nova.conf
import os_resource_classes as orc
import os_traits
from nova.compute.provider_tree import ProviderTree
from nova.virt.driver import ComputeDriver
from oslo_utils import units

from containerhost.inventory.topology import CpuInfo
from nova_lxd_ext import providertree
from nova_lxd_ext.host.architectures import canonical
from nova_lxd_ext.host.resources import HostFacts

CONF = nova.conf.CONF

SERVERS = {"lxd": "CUSTOM_LXD", "incus": "CUSTOM_INCUS"}

# Flags of /proc/cpuinfo with a differently named trait. The others are upper-cased, without underscores.
RENAMED = {
    "aes": "AESNI",
    "bmi1": "BMI",
    "fma": "FMA3",
    "gfni": "AVX512GFNI",
    "pclmulqdq": "CLMUL",
    "pni": "SSE3",
    "rtm": "TSX",
    "sha_ni": "SHA",
    "vaes": "AVX512VAES",
    "vpclmulqdq": "AVX512VPCLMULQDQ",
}
# Features of the host's CPU that a container cannot use: it has no /dev/kvm and no /dev/sgx_enclave.
NOT_INSIDE = frozenset({"vmx", "svm", "sgx"})
FEATURE_PREFIXES = {"x86_64": "HW_CPU_X86_", "i686": "HW_CPU_X86_", "aarch64": "HW_CPU_AARCH64_"}


def update(tree: ProviderTree, nodename: str, facts: HostFacts) -> None:
    """Write the host's inventory and traits into ``tree``, keeping traits that others set."""
    ratios = ComputeDriver._get_allocation_ratios(tree.data(nodename).inventory)
    tree.update_inventory(nodename, inventory(facts, ratios))
    found = traits(facts)
    tree.add_traits(nodename, *sorted(found))
    tree.remove_traits(nodename, *sorted(own_traits(facts) - found))


def inventory(facts: HostFacts, ratios: dict[str, float]) -> dict[str, dict[str, Any]]:
    """Return the host's inventory.

    :returns: inventory by resource class; empty ones, which Placement refuses, are left out
    """
    reserved_disk = ComputeDriver._get_reserved_host_disk_gb_from_config()
    found = {
        orc.VCPU: _entry(len(facts.cpus.shared), CONF.reserved_host_cpus, ratios[orc.VCPU]),
        # Dedicated CPUs have no overcommit.
        orc.PCPU: _entry(len(facts.cpus.dedicated), 0, 1.0),
        orc.MEMORY_MB: _entry(facts.memory.total // units.Mi, CONF.reserved_host_memory_mb, ratios[orc.MEMORY_MB]),
        orc.DISK_GB: _entry(facts.pool.total // units.Gi, reserved_disk, ratios[orc.DISK_GB]),
    }
    return {name: entry for name, entry in found.items() if entry["total"]}


def _entry(total: int, reserved: int, ratio: float) -> dict[str, Any]:
    return providertree.entry(total, reserved=min(reserved, total), ratio=ratio)


def traits(facts: HostFacts) -> set[str]:
    """Return the traits of the host's CPU that apply in a container, and that of its daemon."""
    cpu = facts.topology.cpu
    found = {SERVERS.get(facts.server.name, SERVERS["lxd"])} | _architecture(cpu)
    if cpu.threads_per_core > 1:
        found.add(os_traits.HW_CPU_HYPERTHREADING)
    names = (_feature(cpu, flag) for flag in cpu.features - NOT_INSIDE)
    return found | set(names) & _known_features(cpu)


def own_traits(facts: HostFacts) -> set[str]:
    """Return every trait that :func:`traits` can report: those not currently reported are removed."""
    hidden = {_feature(facts.topology.cpu, flag) for flag in NOT_INSIDE}
    return (set(SERVERS.values()) | {os_traits.HW_CPU_HYPERTHREADING} | _architecture(facts.topology.cpu)
            | _known_features(facts.topology.cpu) - hidden)


def _architecture(cpu: CpuInfo) -> set[str]:
    return {f"HW_ARCH_{canonical(cpu.arch).upper()}"} & set(os_traits.get_traits("HW_ARCH_"))


def _known_features(cpu: CpuInfo) -> set[str]:
    prefix = FEATURE_PREFIXES.get(canonical(cpu.arch))
    return set(os_traits.get_traits(prefix)) if prefix else set()


def _feature(cpu: CpuInfo, flag: str) -> str:
    name = RENAMED.get(flag, flag.upper().replace("_", ""))
    return f"{FEATURE_PREFIXES.get(canonical(cpu.arch), '')}{name}"
