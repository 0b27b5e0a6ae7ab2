# SPDX-License-Identifier: Apache-2.0
"""Build the engines of LXD and of Incus for :mod:`containerhost.engines.local`."""

import io
import os
import platform

from containerhost.engines.local import LocalEngine, Settings
from containerhost.engines.lxd import client
from containerhost.engines.lxd.engine import LxdEngine
from containerhost.engines.lxd.images import Images
from containerhost.engines.lxd.live import Live
from containerhost.errors import EngineError
from containerhost.images import metadata
from containerhost.privileged import Privileged

INCUS = "/var/lib/incus"


def lxd(settings: Settings) -> LocalEngine:
    return _at(settings.endpoint or None, settings)


def incus(settings: Settings) -> LocalEngine:
    return _at(settings.endpoint or os.path.join(os.environ.get("INCUS_DIR", INCUS), "unix.socket"), settings)


def _at(endpoint: str | None, settings: Settings) -> LocalEngine:
    privileged = Privileged()
    daemon = client.Settings(endpoint=endpoint, project=settings.project or None)
    found = LxdEngine(client.LxdClient(daemon), privileged, locks=settings.locks)
    live, images = Live(found, privileged), Images(found.client)

    def import_root(rootfs: bytes, name: str) -> str:
        return images.import_split(metadata.tarball(platform.machine()), io.BytesIO(rootfs), name, {})

    def remove_root(name: str) -> None:
        if image := images.find(name):
            images.delete(image.fingerprint)

    def require_room(pool: str) -> None:
        if words := found.forbidden():
            raise EngineError(words)
        found.pool(pool)

    return LocalEngine(found, live, live, privileged, import_root, remove_root, require_room)
