# SPDX-License-Identifier: Apache-2.0
"""Horizon with the panels of this project, and the exporter of the host: settings and daemons."""

import importlib.resources
import os
import shutil
import sys
from pathlib import Path

from tests.fakehost.control import ENVIRONMENT
from tools.cloud import probes
from tools.cloud.daemons import Daemon, Daemons
from tools.cloud.layout import LOOPBACK, Layout, Passwords, Ports, program, write_private

SECRET = "horizon"  # noqa: S105 (the name of one)

SETTINGS = """\
ALLOWED_HOSTS = ["{address}"]
SECRET_KEY = "{secret}"
OPENSTACK_KEYSTONE_URL = "{keystone}/v3"
OPENSTACK_KEYSTONE_DEFAULT_ROLE = "member"
SESSION_ENGINE = "django.contrib.sessions.backends.file"
SESSION_FILE_PATH = "{sessions}"
CACHES = {{"default": {{"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}}}
STATIC_ROOT = "{static}"
COMPRESS_OFFLINE = True
TIME_ZONE = "UTC"
NOVA_LXD_EXPORTER_URL = "http://{{ip}}:{exporter}"
"""
"""One process without a certificate, for loopback only: neither memcached nor another store of sessions is needed."""


def url(ports: Ports) -> str:
    return f"http://{LOOPBACK}:{ports.horizon}"


def static(layout: Layout) -> Path:
    """Return where the style sheets and scripts lie; they outlive a cloud, because compiling them takes a minute."""
    return layout.directory / "horizon-static"


def configure(layout: Layout, ports: Ports, passwords: Passwords) -> None:
    """Write Horizon's settings and copy the files of this project to it, as an operator does.

    Horizon imports ``local.local_settings``: the directory that PYTHONPATH begins with has it.
    """
    sessions = layout.run / "horizon-sessions"
    sessions.mkdir(mode=0o700, exist_ok=True)
    package = layout.etc("horizon") / "local"
    write_private(package / "__init__.py", "")
    write_private(package / "local_settings.py", SETTINGS.format(
        address=LOOPBACK, secret=passwords[SECRET], keystone=ports.url("keystone"), sessions=sessions,
        static=static(layout), exporter=ports.exporter))
    horizon = importlib.resources.files("openstack_dashboard.local")
    for ours, theirs in (("enabled", "enabled"), ("local_settings", "local_settings.d")):
        for file in importlib.resources.files(f"nova_lxd_dashboard.{ours}").iterdir():
            if file.name.startswith("_") and file.name[1].isdigit():
                shutil.copyfile(str(file), str(horizon / theirs / file.name))


def build(layout: Layout, daemons: Daemons) -> None:
    """Collect and compile style sheets and scripts. Done once for a checkout; again after its directory is deleted."""
    built = static(layout) / "built"
    if built.exists():
        return
    manage = (sys.executable, "-m", "django")
    for command in (("collectstatic", "--noinput", "--verbosity", "0"), ("compress", "--force")):
        daemons.run("horizon-static", (*manage, *command), environment(layout))
    built.touch()


def environment(layout: Layout) -> dict[str, str]:
    """Return what Horizon's processes need beside the cloud's environment."""
    return {"DJANGO_SETTINGS_MODULE": "openstack_dashboard.settings", "PYTHONPATH": str(layout.etc("horizon"))}


def exporter(ports: Ports, owners: Path) -> Daemon:
    """Return the exporter of this host; on an emulated one with an emulated NVML.

    :param owners: directory of the allocation records
    """
    emulated = ENVIRONMENT in os.environ
    command = (sys.executable, "-m", "tests.fakehost.nvml") if emulated else (program("containerhost"),)
    arguments = ("exporter", "--listen", f"{LOOPBACK}:{ports.exporter}", "--owners", str(owners))
    return Daemon("exporter", (*command, *arguments), ready=lambda: probes.port_open(ports.exporter))


def daemon(layout: Layout, ports: Ports) -> Daemon:
    argv = (program("uwsgi"), "--http-socket", url(ports).removeprefix("http://"), "--module",
            "openstack_dashboard.wsgi:application", "--threads", "4", "--lazy-apps", "--enable-threads", "--need-app",
            "--buffer-size", "65535", "--disable-logging", "--die-on-term", "--static-map", f"/static={static(layout)}",
            "--virtualenv", sys.prefix)
    return Daemon("horizon", argv, ready=lambda: probes.http_answers(url(ports) + "/auth/login/"),
                  environment=environment(layout))
