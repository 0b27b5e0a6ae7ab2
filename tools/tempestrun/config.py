# SPDX-License-Identifier: Apache-2.0
"""Tempest's configuration as data: a pure function of what was prepared in the cloud."""

import dataclasses
from pathlib import Path

from tools.cloud import dashboard, networking
from tools.cloud.configs import FILTERS, HOST, REGION
from tools.cloud.ini import Ini
from tools.cloud.layout import SECOND, Ports, Shape

TWO_HOSTS = {"min_compute_nodes": "2", "migration_source_host": HOST, "migration_dest_host": HOST + SECOND}


@dataclasses.dataclass(frozen=True)
class Prepared:
    """:ivar directory: for what Tempest writes
    :ivar password: the administrator's
    :ivar image_file: an image for those tests that upload one
    :ivar images: ids of two images of the guest
    :ivar flavors: ids of two flavors, the second one larger
    :ivar external: id of the network that floating IPs come from
    :ivar shared_volumes: the type of volumes that several servers may have
    :ivar features: ``[compute-feature-enabled]``
    """

    directory: Path
    password: str
    image_file: Path
    images: tuple[str, str]
    flavors: tuple[str, str]
    external: str
    shared_volumes: str
    features: dict[str, str]


def tempest(prepared: Prepared, ports: Ports, shape: Shape) -> Ini:
    """Servers of all tests share one network: with isolated ones every test class would wait for a router."""
    return {
        "DEFAULT": {"log_file": str(prepared.directory / "tempest.log"), "debug": "false"},
        "oslo_concurrency": {"lock_path": str(prepared.directory / "locks")},
        "identity": {"uri_v3": ports.url("keystone") + "/v3", "auth_version": "v3", "region": REGION},
        "auth": {"use_dynamic_credentials": "true", "create_isolated_networks": "false", "tempest_roles": "member",
                 "admin_username": "admin", "admin_password": prepared.password, "admin_project_name": "admin",
                 "admin_domain_name": "Default"},
        "service_available": {"nova": "true", "neutron": "true", "glance": "true", "cinder": str(shape.volumes).lower(),
                              "swift": "false", "horizon": str(shape.dashboard).lower()},
        **({"dashboard": {"dashboard_url": f"{dashboard.url(ports)}/"}} if shape.dashboard else {}),
        "compute": {"image_ref": prepared.images[0], "image_ref_alt": prepared.images[1],
                    "flavor_ref": prepared.flavors[0], "flavor_ref_alt": prepared.flavors[1],
                    "fixed_network_name": networking.FIXED, "max_microversion": "latest",
                    **(TWO_HOSTS if shape.second_host else {}),
                    "build_timeout": "120", "build_interval": "1", "shelved_offload_time": "0"},
        "compute-feature-enabled": {**prepared.features, "scheduler_enabled_filters": FILTERS,
                                    "unified_limits": "true"},
        "network": {"public_network_id": prepared.external, "floating_network_name": networking.EXTERNAL,
                    "project_networks_reachable": "false", "shared_physical_network": "false"},
        "network-feature-enabled": {"floating_ips": "true", "port_security": "true",
                                    "ipv6": "true", "ipv6_subnet_attributes": "true"},
        "validation": {"run_validation": "true", "connect_method": "floating", "image_ssh_user": "root",
                       "network_for_ssh": networking.FIXED, "ssh_timeout": "120", "connect_timeout": "30",
                       "ping_timeout": "60", "ip_version_for_ssh": "4"},
        "scenario": {"dhcp_client": "udhcpc", "img_file": str(prepared.image_file), "img_disk_format": "raw"},
        "volume": {"build_timeout": "120", "volume_size": "1", "max_microversion": "latest",
                   "volume_type_multiattach": prepared.shared_volumes},
        "volume-feature-enabled": {"backup": "false"},
    }
