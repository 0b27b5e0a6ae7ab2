# SPDX-License-Identifier: Apache-2.0
"""Settings of a Horizon for tests: its own, and this project's panels enabled as an operator enables them."""

import socket

from openstack_dashboard import enabled
from openstack_dashboard.test.settings import *  # noqa: F403
from openstack_dashboard.test.settings import HORIZON_CONFIG, INSTALLED_APPS
from openstack_dashboard.utils.settings import update_dashboards

from nova_lxd_dashboard import enabled as ours

socket.setdefaulttimeout(None)  # Horizon's settings give every socket of the process one second

ALLOWED_HOSTS = ["testserver"]  # required by Django's test client
COMPRESS_ENABLED = False
for key in ("dashboards", "default_dashboard"):
    HORIZON_CONFIG.pop(key)
update_dashboards([enabled, ours], HORIZON_CONFIG, [])
INSTALLED_APPS = ["nova_lxd_dashboard", *INSTALLED_APPS]
