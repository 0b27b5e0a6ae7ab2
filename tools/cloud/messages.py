# SPDX-License-Identifier: Apache-2.0
"""The cloud's RabbitMQ: a node of its own."""

from pathlib import Path

import amqp

from tools.cloud import probes
from tools.cloud.daemons import Daemon
from tools.cloud.layout import Layout, Passwords, Ports, write_private

# Debian's /usr/sbin/rabbitmq-server insists on the user rabbitmq, who cannot enter a checkout in somebody's home.
SERVER = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")


class RabbitMq:
    def __init__(self, layout: Layout, ports: Ports, passwords: Passwords) -> None:
        self._directory = layout.run / "rabbitmq"
        self._ports = ports
        self._passwords = passwords

    def transport_url(self) -> str:
        return f"rabbit://openstack:{self._passwords['rabbitmq']}@{self._ports.address}:{self._ports.rabbitmq}/"

    def has_queues(self, *names: str) -> bool:
        """Return whether the queues have consumers: a question that is sent earlier waits for its timeout."""
        address = f"{self._ports.address}:{self._ports.rabbitmq}"
        with amqp.Connection(address, "openstack", self._passwords["rabbitmq"]) as node:
            try:
                for name in names:
                    node.channel().queue_declare(name, passive=True)
            except amqp.NotFound:
                return False
        return True

    def configure(self) -> None:
        self._directory.mkdir(parents=True)
        write_private(self._directory / "rabbitmq.conf", "\n".join([
            f"listeners.tcp.1 = {self._ports.address}:{self._ports.rabbitmq}",
            "default_user = openstack",
            f"default_pass = {self._passwords['rabbitmq']}",
            "disk_free_limit.absolute = 50MB",
            "log.console = true",
            "log.console.level = warning",
            "log.file = false", ""]))
        write_private(self._directory / "enabled_plugins", "[].\n")
        cookie = self._directory / ".erlang.cookie"
        write_private(cookie, self._passwords["erlang cookie"])
        cookie.chmod(0o400)  # Erlang refuses one that anybody could change

    def daemons(self) -> tuple[Daemon, Daemon]:
        """Erlang's port mapper, which a node would otherwise start by itself and leave behind; and the node."""
        environment = {
            "HOME": str(self._directory),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": str(self._ports.epmd),
            "RABBITMQ_NODENAME": "cloud@localhost",
            "RABBITMQ_BASE": str(self._directory),
            "RABBITMQ_CONFIG_FILE": str(self._directory / "rabbitmq"),
            "RABBITMQ_CONF_ENV_FILE": str(self._directory / "no-such-file"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self._directory / "enabled_plugins"),
            "RABBITMQ_MNESIA_BASE": str(self._directory / "mnesia"),
            "RABBITMQ_LOG_BASE": str(self._directory / "log"),
            "RABBITMQ_DIST_PORT": str(self._ports.rabbitmq_distribution),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1} +sbwt none +S 2:2",
        }
        return (
            Daemon("epmd", ("epmd", "-address", "127.0.0.1", "-port", str(self._ports.epmd)),
                   ready=lambda: probes.port_open(self._ports.epmd)),
            Daemon("rabbitmq", (str(SERVER),), environment=environment,
                   ready=lambda: probes.port_open(self._ports.rabbitmq, self._ports.address)),
        )
