# SPDX-License-Identifier: Apache-2.0
"""Manage ports of Open vSwitch by its own tool. Needs root."""

from collections.abc import Collection

from containerhost.linux.sysfs import Host
from containerhost.privileged import COMMAND_TIMEOUT, INTERFACE, check, run

OVS_VSCTL = ("ovs-vsctl", f"--timeout={COMMAND_TIMEOUT - 5}")


def add_port(name: str, bridge: str, vlan: int | None, tagged: Collection[int]) -> None:
    """Add an interface as a port of a bridge. An existing port stays unchanged.

    :param vlan: VLAN whose frames it carries untagged; None is none
    :param tagged: VLANs whose frames it carries tagged; without both, Open vSwitch carries all VLANs tagged
    :raises HostActionFailed: there is no such bridge, or the switch does not answer
    """
    columns = [f"tag={int(vlan)}"] if vlan is not None else []
    if tagged:
        mode = "trunk" if vlan is None else "native-untagged"
        columns += [f"trunks={','.join(str(int(one)) for one in sorted(tagged))}", f"vlan_mode={mode}"]
    run([*OVS_VSCTL, "--may-exist", "add-port", check(INTERFACE, bridge), check(INTERFACE, name), *columns])


def remove_port(name: str) -> None:
    """Remove a port from any bridge. Idempotent.

    :raises HostActionFailed: the switch does not answer
    """
    run([*OVS_VSCTL, "--if-exists", "del-port", check(INTERFACE, name)])


def is_program(host: Host, bridge: str) -> bool:
    """Return whether a bridge forwards in user space; its own interface is then a tap."""
    return host.text(f"/sys/class/net/{bridge}/tun_flags") is not None
