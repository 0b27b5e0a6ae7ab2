# SPDX-License-Identifier: Apache-2.0
"""Register the interfaces of a driver's VMs with OpenNebula's network drivers.

They have a class for each virtualisation driver that returns an interface's name on the host (``vnm/nic.rb``). They
treat an unknown driver as KVM, whose interfaces libvirt names: they find none, so ports of Open vSwitch have no
VLAN, and the rules of security groups match no interface.
"""

from collections.abc import Callable
from pathlib import Path

from onedriver.setup import conffile, stanza
from onedriver.setup.remotes import as_owner

FILE = Path("vnm/nic.rb")
CLASS = "NicLXC"  # class of interfaces named <deploy id>-<NIC_ID>
#: `onevm nic-update` calls set_qos on the node, as oneadmin; the class of LXC's does nothing there.
CLASS_OF_DRIVER = """
VNMMAD::VNMNetwork::HYPERVISORS['DRIVER'] = Class.new(VNMMAD::VNMNetwork::NicLXC) do
    def set_qos(deploy_id)
        limits = [:inbound_avg_bw, :outbound_avg_bw].map { |key| self[key].to_s[/\\A[0-9]+\\z/] || '0' }
        command = 'cd /; [ "$(id -u)" = 0 ] || sudo="sudo -n"; ' \\
                  'exec $sudo "$(command -v DRIVER || echo DRIVER)" vmm limit_nic "$@" 2>&1'
        said = IO.popen(['sh', '-c', command, 'sh', deploy_id.to_s, self[:nic_id].to_s, *limits], &:read)
        raise "NIC #{self[:nic_id]}: #{said.strip}" unless $?.success?
    end
end
"""


def install(remotes: Path, driver: str) -> list[Path]:
    """Register the interfaces with OpenNebula's network drivers.

    :returns: the changes; none if the front-end has no network drivers
    :raises CannotConfigure: this OpenNebula has no class for such interfaces
    """
    def with_class(text: str) -> str:
        if f"class {CLASS} " not in text:
            raise stanza.CannotConfigure(f"{remotes / FILE} has no class {CLASS}: this release of OpenNebula is not "
                                         "supported, its security groups would permit all traffic")
        return stanza.inserted(text, CLASS_OF_DRIVER.replace("DRIVER", driver), driver)

    return changed(remotes, with_class)


def uninstall(remotes: Path, driver: str) -> list[Path]:
    """Remove the interfaces from OpenNebula's network drivers, and return the changes."""
    return changed(remotes, lambda text: stanza.removed(text, driver))


def changed(remotes: Path, how: Callable[[str], str]) -> list[Path]:
    with as_owner(remotes):
        return [FILE] if (remotes / FILE).is_file() and conffile.change(remotes / FILE, how) else []
