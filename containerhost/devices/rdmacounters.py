# SPDX-License-Identifier: Apache-2.0
"""Read the traffic and error counters of RDMA ports.

Source: Documentation/ABI/stable/sysfs-class-infiniband, ``ports/<port-num>/counters``. A function that is in another
network namespace shows no counters to the host.
"""

import dataclasses
from collections.abc import Iterator, Mapping

from containerhost.devices import pci
from containerhost.devices.model import Device
from containerhost.linux.sysfs import Host

WORD = 4  # bytes; port_rcv_data and port_xmit_data count words
#: Name for the reader -> the kernel's file. All of them only grow, until the driver is loaded anew.
COUNTERS: Mapping[str, str] = {
    "received_bytes": "port_rcv_data", "sent_bytes": "port_xmit_data",
    "received_packets": "port_rcv_packets", "sent_packets": "port_xmit_packets",
    "receive_errors": "port_rcv_errors", "send_discards": "port_xmit_discards",
    "send_wait": "port_xmit_wait", "symbol_errors": "symbol_error", "link_downed": "link_downed",
}
_WORDS = frozenset({"received_bytes", "sent_bytes"})


@dataclasses.dataclass(frozen=True, slots=True)
class PortCounters:
    """Hold the traffic and error counters of one RDMA port.

    :ivar port: the kernel counts from 1
    :ivar values: by the names of ``COUNTERS``, without those that the driver does not provide
    """

    device_id: str
    port: int
    values: Mapping[str, int]


def read(host: Host, device: Device) -> Iterator[PortCounters]:
    """Yield the counters of each port of the device's RDMA device."""
    if device.rdma is None or device.rdma.away:
        return
    ports = f"{pci.directory(host, device.address)}/infiniband/{device.rdma.ibdev}/ports"
    for name in host.names(ports):
        if name.isascii() and name.isdigit() and len(name) < 4:
            values = {counter: value * (WORD if counter in _WORDS else 1) for counter, file in COUNTERS.items()
                      if (value := host.number(f"{ports}/{name}/counters/{file}")) is not None and value >= 0}
            yield PortCounters(device.id, int(name), values)
