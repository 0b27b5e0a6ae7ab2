# SPDX-License-Identifier: Apache-2.0
"""DevStack's local.conf for one machine. Pure."""

import dataclasses

ADDRESS = "10.0.2.100"  # slirp4netns gives it
SOURCES = "/opt/sources"
PASSWORD = "devstack"  # noqa: S105 - of a machine that nobody else reaches
GROUPS = {"lxd": "lxd", "incus": "incus-admin"}
SERVICES = ("key", "mysql", "rabbit", "placement-api", "placement-client", "g-api", "q-svc", "q-agt", "q-dhcp", "n-api",
            "n-api-meta", "n-cond", "n-sch", "n-cpu")


@dataclasses.dataclass(frozen=True)
class Wanted:
    """:ivar mirrors: clone the services from ``SOURCES``, and not from where DevStack does by itself
    :ivar tempest: install and configure Tempest
    :ivar more: further lines of the section localrc
    """

    engine: str = "lxd"
    mirrors: bool = True
    more: tuple[str, ...] = ()
    tempest: bool = False


def text(wanted: Wanted) -> str:
    passwords = {f"{name}_PASSWORD": PASSWORD for name in ("ADMIN", "DATABASE", "RABBIT", "SERVICE")}
    mirrors = {"GIT_BASE": f"file://{SOURCES}"} if wanted.mirrors else {}
    settings = passwords | mirrors | {
        "HOST_IP": ADDRESS, "API_WORKERS": "1", "SERVICE_TIMEOUT": "120", "LOGFILE": "/opt/stack/logs/stack.sh.log",
        "ENABLED_SERVICES": ",".join([*SERVICES, *(["tempest"] if wanted.tempest else [])]),
        "DOWNLOAD_DEFAULT_IMAGES": "False",
        # Open vSwitch in user space; the default would be OVN.
        "Q_AGENT": "openvswitch", "Q_ML2_PLUGIN_MECHANISM_DRIVERS": "openvswitch", "Q_ML2_TENANT_NETWORK_TYPE": "vxlan",
        "OVS_DATAPATH_TYPE": "netdev", "NEUTRON_CREATE_INITIAL_NETWORKS": "False",
        # Else Tempest's environments take their constraints from a web server.
        "TEMPEST_VENV_UPPER_CONSTRAINTS": "/opt/stack/requirements/upper-constraints.txt",
        # The image has no sshd, and the network no floating addresses.
        "TEMPEST_RUN_VALIDATION": "False",
        "VIRT_DRIVER": "lxd", "LXD_ENGINE": wanted.engine, "LXD_GROUP": GROUPS[wanted.engine]}
    lines = ["[[local|localrc]]", *(f"{name}={value}" for name, value in settings.items()), *wanted.more,
             f"enable_plugin nova-lxd-ext file://{SOURCES}/nova-lxd-ext main"]
    return "\n".join(lines) + "\n"
