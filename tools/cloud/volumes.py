# SPDX-License-Identifier: Apache-2.0
"""Cinder with a backend of files on loop devices (:mod:`tools.cloud.loopvolumes`): its configuration and daemons."""

import shutil
import sys
from pathlib import Path

from openstack.connection import Connection

from tools.cloud import configs
from tools.cloud.daemons import Daemon
from tools.cloud.ini import Ini
from tools.cloud.layout import CHECKOUT, Layout, program

WORKERS = ("cinder-scheduler", "cinder-volume")
BACKEND = "loop"


def cinder(parts: configs.Parts) -> Ini:
    """One file for all of Cinder."""
    state = parts.layout.run / "cinder"
    return {
        "DEFAULT": {"host": configs.HOST, "my_ip": "127.0.0.1", "state_path": str(state), "auth_strategy": "keystone",
                    "transport_url": parts.messages.transport_url(), "enabled_backends": BACKEND,
                    "glance_api_servers": parts.ports.url("glance"),
                    "api_paste_config": str(parts.layout.etc("cinder") / "api-paste.ini")},
        "database": {"connection": parts.database.url("cinder")},
        "keystone_authtoken": configs.token_check("cinder", parts),
        "service_user": {**configs.user_of("cinder", parts), "send_service_user_token": "true"},
        "nova": configs.user_of("cinder", parts),
        "coordination": {"backend_url": f"file://{state}/coordination"},
        "oslo_concurrency": {"lock_path": f"{state}/locks"},
        BACKEND: {"volume_driver": "tools.cloud.loopvolumes.LoopDriver", "volume_backend_name": BACKEND,
                  "loop_directory": str(state / "volumes")},
    }


def nova(parts: configs.Parts) -> Ini:
    """Return the options that Nova's services need to reach it."""
    return {"cinder": {**configs.user_of("nova", parts), "os_region_name": configs.REGION}}


def connecting(compute_file: Path) -> Ini:
    """Return the configuration by which nova-compute's os-brick does its root actions, being root."""
    return {"privsep_osbrick": {"helper_command": f"{program('privsep-helper')} --config-file {compute_file}"}}


def prepare_files(layout: Layout) -> None:
    """Files of the wheel that Cinder wants beside its configuration."""
    for name in ("api-paste.ini", "resource_filters.json"):
        shutil.copyfile(Path(sys.prefix) / "etc" / "cinder" / name, layout.etc("cinder") / name)
    (layout.run / "cinder" / "volumes").mkdir(parents=True, exist_ok=True)


def config_file(layout: Layout) -> Path:
    return layout.etc("cinder") / "cinder.conf"


def schema_command(layout: Layout) -> tuple[str, ...]:
    return (program("cinder-manage"), "--config-file", str(config_file(layout)), "db", "sync")


def worker(layout: Layout, name: str) -> Daemon:
    """Return whether it works is what Cinder's API says about it."""
    return Daemon(name, (program(name), "--config-file", str(config_file(layout))), ready=lambda: True,
                  environment={"PYTHONPATH": str(CHECKOUT)})


def workers_up(admin: Connection) -> bool:
    return {service.binary for service in admin.block_storage.services() if service.state == "up"}.issuperset(WORKERS)
