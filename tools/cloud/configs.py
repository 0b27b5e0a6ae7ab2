# SPDX-License-Identifier: Apache-2.0
"""The services' configuration files as data: pure functions, one for each service.

Options that are left at their defaults are not written, so that a reader sees what an all-in-one cloud really needs.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from tools.cloud.database import MariaDb
from tools.cloud.hardware import Offer
from tools.cloud.ini import Ini
from tools.cloud.layout import LOOPBACK, Layout, Passwords, Ports, Shape
from tools.cloud.messages import RabbitMq

REGION = "RegionOne"
HOST = "demo-host"
FILTERS = ("ComputeFilter,ComputeCapabilitiesFilter,ImagePropertiesFilter,SameHostFilter,DifferentHostFilter,"
           "ServerGroupAntiAffinityFilter,ServerGroupAffinityFilter,AggregateMultiTenancyIsolation,"
           "NUMATopologyFilter,PciPassthroughFilter,TaskGroupFilter")
# For a cloud that many small servers come and go on.
MANY_SERVERS = {"cpu_allocation_ratio": "32"}
# Right for a keystone of a single process only.
KEYSTONE_CACHE: Ini = {"cache": {"enabled": "true", "backend": "oslo_cache.dict"}}


@dataclasses.dataclass(frozen=True)
class Node:
    """A compute host.

    :ivar suffix: of the names of its directories and daemons
    :ivar engine_socket: the unix socket of LXD or Incus
    :ivar owners: directory of the allocation records (which container has which device)
    :ivar offers: the devices that flavors can ask for
    :ivar address: where other hosts reach it
    :ivar tunnels: address of its end of the tunnels that the tenants' networks are in
    """

    suffix: str
    engine_socket: Path
    owners: Path
    offers: tuple[Offer, ...] = ()
    address: str = LOOPBACK
    tunnels: str = LOOPBACK

    @property
    def name(self) -> str:
        """Return the host name that Nova and Neutron use."""
        return HOST + self.suffix


@dataclasses.dataclass(frozen=True)
class Parts:
    """Hold what the configurations are made from.

    :ivar nodes: its compute hosts, first the one that everything else is on
    :ivar memlock: what ``[lxd] rdma_memlock`` becomes
    :ivar shape: what the cloud has beside the services that every one has
    """

    layout: Layout
    ports: Ports
    passwords: Passwords
    database: MariaDb
    messages: RabbitMq
    nodes: tuple[Node, ...]
    pool: str
    memlock: str
    shape: Shape


def user_of(service: str, parts: Parts) -> dict[str, str | Sequence[str]]:
    """Return the options with which a service logs in to keystone."""
    return {"auth_type": "password", "auth_url": parts.ports.url("keystone"), "username": service,
            "password": parts.passwords[service], "project_name": "service", "user_domain_name": "Default",
            "project_domain_name": "Default", "region_name": REGION}


def token_check(service: str, parts: Parts) -> dict[str, str | Sequence[str]]:
    return {**user_of(service, parts), "www_authenticate_uri": parts.ports.url("keystone"),
            "service_token_roles_required": "true"}


def keystone(parts: Parts) -> Ini:
    keys = parts.layout.state / "keystone"
    return {
        "database": {"connection": parts.database.url("keystone")},
        "fernet_tokens": {"key_repository": f"{keys}/fernet-keys"},
        "credential": {"key_repository": f"{keys}/credential-keys"},
        # The passwords are long and random: slow hashes would protect nothing and cost half a second for each login.
        "identity": {"password_hash_rounds": "4"},
        # Keystone has one process, so that what that remembers is not out of date.
        "cache": {"enabled": "true", "backend": "oslo_cache.dict"},
    }


def glance(parts: Parts) -> Ini:
    data = parts.layout.run / "glance"
    return {
        "DEFAULT": {"enabled_backends": "files:file", "show_multiple_locations": "false"},
        "database": {"connection": parts.database.url("glance")},
        "glance_store": {"default_backend": "files"},
        "files": {"filesystem_store_datadir": f"{data}/images"},
        "os_glance_staging_store": {"filesystem_store_datadir": f"{data}/staging"},
        "os_glance_tasks_store": {"filesystem_store_datadir": f"{data}/tasks"},
        "keystone_authtoken": token_check("glance", parts),
        "paste_deploy": {"flavor": "keystone"},
        "oslo_concurrency": {"lock_path": f"{data}/locks"},
    }


def placement(parts: Parts) -> Ini:
    return {
        "placement_database": {"connection": parts.database.url("placement")},
        "keystone_authtoken": token_check("placement", parts),
        # Boots that come at once choose different devices.
        "placement": {"randomize_allocation_candidates": "true"},
    }


def network_server(parts: Parts) -> Ini:
    """Run a real neutron-server without agents: enough for servers without ports."""
    return {
        "DEFAULT": {"core_plugin": "ml2", "service_plugins": "", "transport_url": parts.messages.transport_url(),
                    "state_path": f"{parts.layout.run}/neutron", "notify_nova_on_port_status_changes": "false",
                    "notify_nova_on_port_data_changes": "false"},
        "database": {"connection": parts.database.url("neutron")},
        "keystone_authtoken": token_check("neutron", parts),
        "ml2": {"type_drivers": "local,flat", "tenant_network_types": "local", "mechanism_drivers": "openvswitch"},
        "oslo_concurrency": {"lock_path": f"{parts.layout.run}/neutron/locks"},
    }


def nova_common(parts: Parts, node: Node) -> Ini:
    """Return nova's common options.

    A resize may stay on its host: often there is no other, and only there it leaves the server running."""
    state = parts.layout.run / f"nova{node.suffix}"
    return {
        "DEFAULT": {"host": node.name, "my_ip": node.address, "state_path": str(state),
                    "transport_url": parts.messages.transport_url(), "allow_resize_to_same_host": "true"},
        "keystone_authtoken": token_check("nova", parts),
        "service_user": {**user_of("nova", parts), "send_service_user_token": "true"},
        "placement": user_of("nova", parts),
        "neutron": user_of("nova", parts),
        "glance": {"endpoint_override": parts.ports.url("glance")},
        "oslo_concurrency": {"lock_path": f"{state}/locks"},
        "pci": {"alias": list(dict.fromkeys(offer.alias_option for node in parts.nodes for offer in node.offers))},
    }


def nova_control(parts: Parts) -> Ini:
    """Return the options of nova's API, scheduler, conductor and nova-manage.

    Without the fuzzy delay of up to a minute the scheduler finds the new host at once. Quotas are keystone's (unified
    limits), for nova's own know no devices."""
    common = nova_common(parts, parts.nodes[0])
    return {
        **common,
        "DEFAULT": {**common["DEFAULT"], "periodic_fuzzy_delay": "0"},
        "api_database": {"connection": parts.database.url("nova_api")},
        "database": {"connection": parts.database.url("nova")},
        "conductor": {"workers": "1"},
        "quota": {"driver": "nova.quota.UnifiedLimitsDriver"},
        "oslo_limit": {**user_of("nova", parts), "endpoint_service_type": "compute", "endpoint_region_name": REGION},
        "scheduler": {"workers": "1", "discover_hosts_in_cells_interval": "2"},
        "filter_scheduler": {
            "available_filters": ["nova.scheduler.filters.all_filters", "nova_lxd_ext.scheduler.TaskGroupFilter"],
            "enabled_filters": FILTERS,
            "weight_classes": "nova.scheduler.weights.all_weighers,nova_lxd_ext.scheduler.TaskGroupWeigher",
            "pci_in_placement": "true"},
    }


def nova_compute(parts: Parts, node: Node) -> Ini:
    """nova-compute reaches no database: that is the conductor's."""
    common = nova_common(parts, node)
    moving = {"migration_address": f"https://{node.address}:{parts.ports.engine}",
              "live_migration": "restart"} if parts.shape.second_host else {}
    notifications = {"notifications": {"notification_format": "versioned"},
                     "oslo_messaging_notifications": {"driver": "messagingv2"}} if parts.shape.notifications else {}
    look = {"update_resources_interval": str(parts.shape.look)} if parts.shape.look else {}
    return {
        **common, **notifications,
        "DEFAULT": {**common["DEFAULT"], **look, "compute_driver": "lxd.LXDDriver"},
        "pci": {**common["pci"], "report_in_placement": "true",
                "device_spec": [spec for offer in node.offers for spec in offer.spec_options]},
        "vnc": {"enabled": "false"},
        "lxd": {"endpoint": str(node.engine_socket), "storage_pool": parts.pool, "rdma_memlock": parts.memlock,
                "owners_dir": str(node.owners), **moving},
    }
