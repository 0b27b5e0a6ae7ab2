# SPDX-License-Identifier: Apache-2.0
"""Build Docker's engine for :mod:`containerhost.engines.local`."""

from containerhost.engines.docker import client
from containerhost.engines.docker.engine import DockerEngine
from containerhost.engines.docker.images import Images
from containerhost.engines.docker.live import Live
from containerhost.engines.docker.privileged import DockerPrivileged
from containerhost.engines.local import LocalEngine, Settings


def docker(settings: Settings) -> LocalEngine:
    privileged = DockerPrivileged()
    daemon = client.Settings(settings.endpoint) if settings.endpoint else client.Settings()
    connection = client.DockerClient(daemon)
    found = DockerEngine(connection, privileged, settings.records)
    return LocalEngine(found, Live(found), None, privileged, connection.import_root,
                       lambda name: Images(connection).remove(f"{name}:{client.LATEST}"), sets_addresses=True)
