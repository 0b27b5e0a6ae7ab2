# SPDX-License-Identifier: Apache-2.0
"""OpenStack's own processes: how each is started and how its database is made."""

import shutil
import sys
from pathlib import Path

from tools.cloud import configs, ini, netconfigs, probes, volumes
from tools.cloud.daemons import Daemon
from tools.cloud.layout import FIRST, Layout, Ports, Shape, program
from tools.units import confined

WSGI = {
    "keystone": "keystone.wsgi.api:application",
    "glance": "glance.wsgi.api:application",
    "placement": "placement.wsgi.api:application",
    "neutron": "neutron.wsgi.api:application",
    "nova": "nova.wsgi.osapi_compute:application",
    "metadata": "nova.wsgi.metadata:application",
    "cinder": "cinder.wsgi.api:application",
}
# Whose configuration a service of another name has.
OWNER = {"metadata": "nova"}
CONFIG_FILE = {"keystone": "keystone.conf", "glance": "glance-api.conf", "placement": "placement.conf",
               "neutron": "neutron.conf", "nova": "nova.conf", "cinder": "cinder.conf"}
# Files of the wheels that a service wants beside its configuration.
PASTE = {"glance": "glance-api-paste.ini", "neutron": "api-paste.ini", "nova": "api-paste.ini"}


def configure(parts: configs.Parts) -> None:
    """Write every service's configuration."""
    for path, content in contents(parts).items():
        ini.write(path, content)
    for service, name in PASTE.items():
        shutil.copyfile(Path(sys.prefix) / "etc" / service / name, parts.layout.etc(service) / name)
    if parts.shape.volumes:
        volumes.prepare_files(parts.layout)
    instances = (f"nova{node.suffix}/instances" for node in parts.nodes)
    for directory in ("glance/images", "glance/staging", "glance/tasks", "neutron", *instances):
        (parts.layout.run / directory).mkdir(parents=True, exist_ok=True)


def contents(parts: configs.Parts) -> dict[Path, ini.Ini]:
    """Return the content of each configuration file."""
    files = {"keystone": configs.keystone(parts), "glance": configs.glance(parts),
             "placement": configs.placement(parts), "neutron": configs.network_server(parts),
             "nova": configs.nova_control(parts)}
    computes = {compute_file(parts.layout, node.suffix): configs.nova_compute(parts, node) for node in parts.nodes}
    if parts.shape.networks:
        files["neutron"] = netconfigs.neutron(parts)
        files["keystone"] |= configs.KEYSTONE_CACHE
        for content in (files["nova"], *computes.values()):
            content["neutron"] |= netconfigs.metadata_service(parts)
        for path, compute in computes.items():
            compute.update(netconfigs.plugging(path))
            compute["DEFAULT"] |= configs.MANY_SERVERS
    if parts.shape.volumes:
        files["cinder"] = volumes.cinder(parts)
        files["nova"] |= volumes.nova(parts)
        for path, compute in computes.items():
            compute.update(volumes.nova(parts) | volumes.connecting(path))
    return {**{config_file(parts.layout, service): content for service, content in files.items()}, **computes}


def config_file(layout: Layout, service: str) -> Path:
    return layout.etc(service) / CONFIG_FILE[service]


def compute_file(layout: Layout, suffix: str = FIRST) -> Path:
    """:param suffix: of the compute host"""
    return layout.etc(f"nova-compute{suffix}") / "nova.conf"


def api(layout: Layout, ports: Ports, service: str) -> Daemon:
    """Return one API under uWSGI.

    It listens before the application is loaded, so readiness is an answer, not an open port; without ``Connection:
    close`` clients that keep connections meet resets; Glance's client sends parts of 1 MiB, which is a little more than
    uWSGI takes by itself."""
    url = ports.url(service)
    argv = (program("uwsgi"), "--http-socket", url.removeprefix("http://"), "--module", WSGI[service], "--threads", "6",
            "--add-header", "Connection: close", "--http-raw-body", "--lazy-apps", "--enable-threads", "--need-app",
            "--buffer-size", "65535", "--chunked-input-limit", str(2 * 1024 ** 2), "--disable-logging", "--die-on-term",
            "--virtualenv", sys.prefix)
    owner = OWNER.get(service, service)
    environment = {f"OS_{owner.upper()}_CONFIG_DIR": str(layout.etc(owner))}
    if service == "neutron":
        environment["OS_NEUTRON_CONFIG_FILES"] = CONFIG_FILE["neutron"]
    if service == "cinder":  # it takes no directory from its environment
        argv += ("--pyargv", f"--config-file {config_file(layout, service)}")
    path = "/v3" if service == "keystone" else "/"
    return Daemon(f"{service}-api", argv, ready=lambda: probes.http_answers(url + path), environment=environment)


def nova_daemon(layout: Layout, name: str) -> Daemon:
    """nova-conductor or nova-scheduler; whether they work is what Nova's API says about them."""
    return Daemon(name, (program(name), "--config-file", str(config_file(layout, "nova"))), ready=lambda: True)


def compute_daemon(layout: Layout, suffix: str = FIRST) -> Daemon:
    argv = (*confined("nova-compute-lxd"), program("nova-compute"), "--config-file", str(compute_file(layout, suffix)))
    return Daemon(f"nova-compute{suffix}", argv, ready=lambda: True)


def schema_commands(layout: Layout, shape: Shape) -> dict[str, list[tuple[str, ...]]]:
    """Return the commands that make each service's tables and keys, in order; services run side by side."""
    def manage(tool: str, service: str) -> tuple[str, ...]:
        return (program(tool), "--config-file", str(config_file(layout, service)))

    keystone = manage("keystone-manage", "keystone")
    nova = manage("nova-manage", "nova")
    root = ("--keystone-user", "root", "--keystone-group", "root")
    more = {"cinder-db": [volumes.schema_command(layout)]} if shape.volumes else {}
    return {
        **more,
        "nova-db": [(*nova, "api_db", "sync"), (*nova, "cell_v2", "map_cell0"), (*nova, "db", "sync"),
                    (*nova, "cell_v2", "create_cell", "--name", "cell1")],
        "neutron-db": [(*manage("neutron-db-manage", "neutron"), "upgrade", "heads")],
        "keystone-db": [(*keystone, "db_sync"), (*keystone, "fernet_setup", *root),
                        (*keystone, "credential_setup", *root)],
        "glance-db": [(*manage("glance-manage", "glance"), "db_sync")],
        "placement-db": [(*manage("placement-manage", "placement"), "db", "sync")],
    }
