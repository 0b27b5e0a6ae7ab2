# SPDX-License-Identifier: Apache-2.0
"""Return a server's diagnostics, in both of nova's forms. Pure.

The engine reports CPU time per container, not per CPU, and only the used bytes of a disk.
"""

import datetime
import re
from collections.abc import Collection

from nova.objects import diagnostics
from nova.objects.fields import HypervisorDriver
from nova.objects.instance import Instance
from oslo_utils import units

from containerhost.engines.contract import ContainerState, InterfaceMetrics, Metrics

MAC = re.compile(r"(?:[0-9a-f]{2}:){5}[0-9a-f]{2}", re.IGNORECASE)


def plain(metrics: Metrics, faults: Collection[str] = ()) -> dict[str, int | str]:
    """Return the diagnostics for microversions before 2.48, like other drivers: nanoseconds, KiB and bytes."""
    found: dict[str, int | str] = {
        "cpu0_time": metrics.cpu_time,
        "memory": metrics.memory // units.Ki,
        "memory-peak": metrics.memory_peak // units.Ki,
        "memory-swap": metrics.swap // units.Ki,
        "processes": metrics.processes,
    }
    for disk, used in sorted(metrics.disks.items()):
        found[f"{disk}_used"] = used
    for interface in metrics.interfaces:
        found |= _plain_interface(interface)
    if faults:
        found["devicefaults"] = ", ".join(faults)
    return found


def _plain_interface(interface: InterfaceMetrics) -> dict[str, int]:
    return {
        f"{interface.name}_rx": interface.received_bytes,
        f"{interface.name}_rx_packets": interface.received_packets,
        f"{interface.name}_rx_errors": interface.received_errors,
        f"{interface.name}_rx_drop": interface.received_dropped,
        f"{interface.name}_tx": interface.sent_bytes,
        f"{interface.name}_tx_packets": interface.sent_packets,
        f"{interface.name}_tx_errors": interface.sent_errors,
        f"{interface.name}_tx_drop": interface.sent_dropped,
    }


def standard(instance: Instance, state: ContainerState, metrics: Metrics, power_state: str, hypervisor: str,
             now: datetime.datetime | None = None, faults: Collection[str] = ()) -> diagnostics.Diagnostics:
    """Return the diagnostics for microversion 2.48 and later: memory in MiB, times in nanoseconds, uptime in seconds.

    :param power_state: nova's name of it (``running``)
    """
    found = diagnostics.Diagnostics(
        state=power_state,
        # The API's list of drivers is fixed and has no LXD; libvirt, which also supports containers, is the closest.
        driver=HypervisorDriver.LIBVIRT,
        hypervisor=hypervisor,
        hypervisor_os=f"linux, devicefaults: {', '.join(faults)}" if faults else "linux",
        uptime=_uptime(state, now or datetime.datetime.now(datetime.UTC)),
        config_drive=bool(instance.config_drive),
        memory_details=diagnostics.MemoryDiagnostics(
            maximum=instance.flavor.memory_mb, used=metrics.memory // units.Mi))
    found.add_cpu(id=0, time=metrics.cpu_time)
    for interface in metrics.interfaces:
        # InfiniBand's 20-byte address does not fit the field.
        mac = interface.mac if MAC.fullmatch(interface.mac) else None
        found.add_nic(mac_address=mac, rx_octets=interface.received_bytes, rx_packets=interface.received_packets,
                      rx_errors=interface.received_errors, rx_drop=interface.received_dropped,
                      tx_octets=interface.sent_bytes, tx_packets=interface.sent_packets,
                      tx_errors=interface.sent_errors, tx_drop=interface.sent_dropped)
    for _ in metrics.disks:
        found.add_disk()
    found.num_cpus = instance.flavor.vcpus
    return found


def _uptime(state: ContainerState, now: datetime.datetime) -> int | None:
    return max(int((now - state.last_used).total_seconds()), 0) if state.last_used else None
