# SPDX-License-Identifier: Apache-2.0
"""The cloud's MariaDB: an instance of its own, reached over a unix socket only."""

import signal
from pathlib import Path

import pymysql

from tools.cloud import probes
from tools.cloud.daemons import Daemon, Daemons
from tools.cloud.layout import Layout, Passwords

# database -> the user (of the same password) that may use it
DATABASES = {"keystone": "keystone", "glance": "glance", "placement": "placement", "neutron": "neutron",
             "cinder": "cinder", "nova_api": "nova", "nova_cell0": "nova", "nova": "nova"}


class MariaDb:
    def __init__(self, layout: Layout, passwords: Passwords) -> None:
        self._layout = layout
        self._passwords = passwords

    @property
    def _files(self) -> Path:
        return self._layout.state / "mysql"

    @property
    def _options(self) -> tuple[str, ...]:
        """Return the options of server and installer. Data live no longer than the cloud: nothing waits for a disk."""
        return ("--no-defaults", "--user=root", f"--datadir={self._files}", "--innodb-log-file-size=16M",
                "--innodb-flush-log-at-trx-commit=0", "--innodb-doublewrite=0")

    def create(self, daemons: Daemons) -> None:
        """Make an empty data directory; root logs in by being root on the unix socket."""
        self._files.mkdir(parents=True)
        daemons.run("mariadb-install-db", ("mariadb-install-db", *self._options, "--skip-test-db",
                                           "--auth-root-authentication-method=socket"))

    def daemon(self) -> Daemon:
        """Return the daemon, which ends on SIGTERM: a prepared data directory must be whole."""
        socket = self._layout.database_socket
        return Daemon("mariadb", ("mariadbd", *self._options, f"--socket={socket}", "--skip-networking",
                                  f"--pid-file={self._layout.run / 'mysql.pid'}", "--performance-schema=OFF",
                                  "--max-connections=400"),
                      ready=lambda: probes.socket_open(socket), end=signal.SIGTERM)

    def create_databases(self) -> None:
        connection = pymysql.connect(unix_socket=str(self._layout.database_socket), user="root")
        with connection, connection.cursor() as cursor:
            for user in sorted(set(DATABASES.values())):
                cursor.execute("CREATE USER %s@localhost IDENTIFIED BY %s", (user, self._passwords[f"database {user}"]))
            for name, user in DATABASES.items():
                cursor.execute(f"CREATE DATABASE {name} CHARACTER SET utf8mb3")
                cursor.execute(f"GRANT ALL ON {name}.* TO %s@localhost", (user,))

    def url(self, name: str) -> str:
        """Return the URL for a service's ``connection`` option."""
        user = DATABASES[name]
        return (f"mysql+pymysql://{user}:{self._passwords[f'database {user}']}@localhost/{name}"
                f"?unix_socket={self._layout.database_socket}&charset=utf8")
