# SPDX-License-Identifier: Apache-2.0
"""Manage a VM's network interfaces: pairs of a port of OpenNebula's bridge and the container's interface.

The host's end has OpenNebula's name, by which its security groups find it. Addresses are set from outside, as in the
context.
"""

import dataclasses

from containerhost.engines.network import openvswitch
from containerhost.engines.network.veth import RETURN_TIMEOUT, Pair, Shape, Veths
from containerhost.engines.spec import Nic as SpecNic
from containerhost.linux.poll import wait_until
from containerhost.linux.sysfs import Host
from containerhost.rollback import Rollback
from onedock import addresses
from onedriver.errors import BadInput, NotSupported
from onedriver.node import validation
from onedriver.node.names import name
from onedriver.node.niclimits import KILOBYTE
from onedriver.vm import OVS, Nic, Vm


class Nics:
    def __init__(self, veths: Veths) -> None:
        self._veths = veths

    def parts(self, vm: Vm) -> tuple[SpecNic, ...]:
        """Return the container's parts for the interfaces, whether they exist yet or not."""
        return tuple(spec_nic(vm, nic) for nic in vm.nics)

    def provide(self, vm: Vm) -> tuple[SpecNic, ...]:
        """Create missing interfaces for a container that is not running."""
        for nic in vm.nics:
            self.make(vm, nic, running=False)
        return self.parts(vm)

    def make(self, vm: Vm, nic: Nic, *, running: bool) -> bool:
        """Create a missing interface, and plug it in.

        :param running: whether its other end is in the container
        :returns: whether it was created
        :raises NotSupported: the template's settings are not supported
        """
        wanted = pair(vm, nic)
        present = self._veths.mark(wanted.host_end)
        if present == owner(vm.id):
            wanted = dataclasses.replace(wanted, mark=present)
        elif present != wanted.mark and is_of(present, vm.id):  # oned did not get the answer to its attachment
            self._remove(nic, wanted.host_end)
        if nic.bridge_type == OVS:
            require_no_limits(vm, nic)
            wanted = dataclasses.replace(wanted, software_checksums=openvswitch.is_program(Host(), nic.bridge or ""))
        if self._veths.marks(wanted) and (running or wait_until(
                lambda: self._veths.is_here(wanted.inner_end), RETURN_TIMEOUT)):
            self._join(wanted, nic)
            if nic.bridge_type != OVS:
                self._veths.limit(wanted.host_end, *map(shape, nic.bandwidth))
            return False
        with Rollback(f"interface {wanted.host_end}") as undo:
            self._veths.make(wanted)
            undo.on_error("the pair", self._remove, nic, wanted.host_end)
            self._join(wanted, nic)
            if any(nic.bandwidth):
                self._veths.limit(wanted.host_end, *map(shape, nic.bandwidth))
        return True

    def limit(self, vm_id: int, nic_id: int, received: int | None, sent: int | None) -> None:
        """Limit the rates of an existing NIC.

        :param received, sent: bytes per second; None is no limit
        :raises BadInput: the VM has no such NIC on this host
        :raises NotSupported: it is a port of Open vSwitch
        """
        host_end = f"{name(vm_id)}-{nic_id}"
        if not is_of(self._veths.mark(host_end), vm_id):
            raise BadInput(f"VM {vm_id} has no NIC {nic_id} on this host")
        if not self._veths.is_bridged(host_end):
            raise unlimited(vm_id, nic_id)
        self._veths.limit(host_end, limits(received), limits(sent))

    def _join(self, wanted: Pair, nic: Nic) -> None:
        """Plug it in with its VLANs from the first frame, because OpenNebula's network driver runs after the start."""
        if nic.bridge_type == OVS:
            openvswitch.add_port(wanted.host_end, nic.bridge or "", nic.vlan_id, nic.tagged)
        else:
            self._veths.join(wanted.host_end, nic.bridge or "")

    def _remove(self, nic: Nic, host_end: str) -> None:
        self._veths.remove(host_end)
        if nic.bridge_type == OVS:
            openvswitch.remove_port(host_end)

    def remove(self, vm_id: int, but: frozenset[str] = frozenset()) -> None:
        """Remove all interfaces of a VM, including detached ones, except remaining host ends."""
        for host_end, found in self._veths.marked(owner(vm_id)).items():
            # What came back from a container has the alias that its tenant gave it.
            if is_of(found, vm_id) and host_end.startswith(f"{name(vm_id)}-") and host_end not in but:
                self._veths.remove(host_end)

    def remove_one(self, vm: Vm, nic: Nic) -> None:
        self._remove(nic, pair(vm, nic).host_end)


def spec_nic(vm: Vm, nic: Nic) -> SpecNic:
    """Return a NIC, named ``eth<NIC_ID>``, so that its name is independent of other NICs."""
    return SpecNic(f"eth{nic.id}", pair(vm, nic).inner_end, setup=addresses.setup(vm.context, nic.mac))


def pair(vm: Vm, nic: Nic) -> Pair:
    validation.bridge(vm.id, nic)
    return Pair(nic.target, f"oi-{vm.id}-{nic.id}", nic.mac, f"{owner(vm.id)} {nic.mac}", nic.mtu)


def require_no_limits(vm: Vm, nic: Nic) -> None:
    """Refuse limits on Open vSwitch, which removes what others set on its ports."""
    if any(nic.bandwidth):
        raise unlimited(vm.id, nic.id)


def unlimited(vm_id: int, nic_id: int) -> NotSupported:
    return NotSupported(f"NIC {nic_id} of VM {vm_id} is on Open vSwitch with INBOUND_AVG_BW or OUTBOUND_AVG_BW, "
                        "which the switch would end: use a network of Linux bridges, or set the limit there")


def shape(kilobytes: int | None) -> Shape | None:
    """Return the limits of an interface in KB per second; None is no limit."""
    return limits((kilobytes or 0) * KILOBYTE)


def limits(rate: int | None) -> Shape | None:
    return Shape(rate, rate, rate) if rate else None


def owner(vm_id: int) -> str:
    """Return the prefix of a pair's mark before its address; the whole mark for pairs of earlier releases."""
    return f"onedock VM {vm_id}"


def is_of(mark: str | None, vm_id: int) -> bool:
    return f"{mark} ".startswith(f"{owner(vm_id)} ")
