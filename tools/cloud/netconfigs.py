# SPDX-License-Identifier: Apache-2.0
"""The configuration of Neutron with its agents, as data: pure functions."""

from pathlib import Path

from tools.cloud.configs import HOST, Node, Parts, network_server, user_of
from tools.cloud.ini import Ini
from tools.cloud.layout import FIRST, LOOPBACK, Layout, Ports, program

# The network that floating IPs come from, and the bridge that leads to it.
PHYSICAL = "public"
EXTERNAL_BRIDGE = "br-ex"
SWITCH_AGENT = "neutron-openvswitch-agent"
# On the first host only.
OTHER_AGENTS = ("neutron-dhcp-agent", "neutron-l3-agent", "neutron-metadata-agent")


def neutron(parts: Parts) -> Ini:
    """Return the daemons: the API, the RPC server and the periodic workers; they notify Nova of plugged ports."""
    server = network_server(parts)
    notifications = {"oslo_messaging_notifications": {"driver": "log"}} if parts.shape.notifications else {}
    return {
        **server, **notifications,
        "DEFAULT": {**server["DEFAULT"], "service_plugins": "router,qos", "host": HOST, "rpc_workers": "1",
                    "rpc_state_report_workers": "1", "notify_nova_on_port_status_changes": "true",
                    "notify_nova_on_port_data_changes": "true", "interface_driver": "openvswitch",
                    # An agent counts as down after this; the agents report twice as often.
                    "agent_down_time": "30"},
        "nova": user_of("nova", parts),
        "ml2": {"type_drivers": "flat,vlan,vxlan,local", "tenant_network_types": "vxlan",
                "mechanism_drivers": "openvswitch", "extension_drivers": "port_security,qos"},
        "ml2_type_flat": {"flat_networks": PHYSICAL},
        "ml2_type_vxlan": {"vni_ranges": "1:1000"},
        "agent": {"root_helper": "env", "root_helper_daemon": "", "report_interval": "10"},
        "ovs": switch(parts.ports),
    }


def switch(ports: Ports) -> dict[str, str]:
    """Where a host's Open vSwitch answers: on its own loopback."""
    return {"ovsdb_connection": f"tcp:{LOOPBACK}:{ports.ovsdb}", "datapath_type": "netdev"}


def switch_agent(parts: Parts, node: Node) -> Ini:
    """Each host has one. The way out is on the first host only."""
    way_out = {"bridge_mappings": f"{PHYSICAL}:{EXTERNAL_BRIDGE}"} if node.suffix == FIRST else {}
    return {
        "DEFAULT": {"host": node.name},
        "ovs": {**switch(parts.ports), "local_ip": node.tunnels, "of_listen_port": str(parts.ports.openflow),
                **way_out},
        "agent": {"tunnel_types": "vxlan", "root_helper": "env", "root_helper_daemon": "", "report_interval": "10"},
        "securitygroup": {"firewall_driver": "openvswitch"},
    }


def agents(parts: Parts) -> dict[str, Ini]:
    """Return each agent's configuration beside neutron.conf."""
    return {
        **{SWITCH_AGENT + node.suffix: switch_agent(parts, node) for node in parts.nodes},
        "neutron-dhcp-agent": {"DEFAULT": {
            "enable_isolated_metadata": "true", "resync_interval": "5",
            "dnsmasq_config_file": agent_file(parts.layout, "dnsmasq")}},
        "neutron-l3-agent": {"DEFAULT": {"agent_mode": "legacy"}},
        "neutron-metadata-agent": {
            "DEFAULT": {"nova_metadata_host": parts.ports.address, "nova_metadata_port": str(parts.ports.metadata),
                        "metadata_proxy_shared_secret": parts.passwords["metadata"], "metadata_workers": "1"}},
    }


def dnsmasq() -> str:
    """Configure dnsmasq to stay root: it would become nobody, who cannot read the leases in the cloud's directory."""
    return "user=root\ngroup=root\n"


def agent_file(layout: Layout, name: str) -> str:
    return str(layout.etc("neutron") / f"{name}.ini")


def metadata_service(parts: Parts) -> dict[str, str]:
    """Nova's part of the metadata service, for its section ``[neutron]``."""
    return {"service_metadata_proxy": "true", "metadata_proxy_shared_secret": parts.passwords["metadata"]}


def plugging(compute_file: Path) -> Ini:
    """Return the configuration by which nova-compute's os-vif does its root actions, being root.

    :param compute_file: nova-compute's configuration
    """
    helper = f"{program('privsep-helper')} --config-file {compute_file}"
    return {f"vif_plug_{name}_privileged": {"helper_command": helper} for name in ("ovs", "linux_bridge", "noop")}
