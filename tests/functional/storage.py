# SPDX-License-Identifier: Apache-2.0
"""Make loop devices to be volumes, and a Cinder that offers them as volumes which are local to the host."""

import copy
import os
import subprocess
from typing import Any

import fixtures
from nova.tests import fixtures as nova_fixtures
from oslo_utils import uuidutils

GIB = 2**30


class Loop(fixtures.Fixture):
    """:ivar path: the device
    """

    def __init__(self, size: int = GIB) -> None:
        super().__init__()
        self._size = size

    def _setUp(self) -> None:
        self._file = os.path.join(self.useFixture(fixtures.TempDir()).path, "volume")
        self._resize(self._size)
        self.path = _run("losetup", "--find", "--show", self._file)
        self._handle = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        self.addCleanup(os.close, self._handle)
        # While it is open the kernel only marks it: it goes with its last user, however this process ends.
        _run("losetup", "--detach", self.path)

    def grow(self, size: int) -> None:
        self._resize(size)
        _run("losetup", "--set-capacity", self.path)

    def _resize(self, size: int) -> None:
        with open(self._file, "ab") as file:
            file.truncate(size)
        self._size = size

    @property
    def size(self) -> int:
        """GiB, rounded up, as Cinder counts."""
        return -(-self._size // GIB)

    def write(self, content: bytes, place: int = 0) -> None:
        with open(self.path, "r+b") as device:
            device.seek(place)
            device.write(content)

    def read(self, length: int, place: int = 0) -> bytes:
        with open(self.path, "rb") as device:
            device.seek(place)
            return device.read(length)


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout.strip()


class Cinder(nova_fixtures.CinderFixture):
    """Nova's stand-in for Cinder with volumes that are there."""

    def __init__(self, test: Any) -> None:
        super().__init__(test)
        self.loops: dict[str, Loop] = {}
        self.VOLUME_CONNECTION_INFO = copy.deepcopy(type(self).VOLUME_CONNECTION_INFO)

    def volume(self, volume_id: str | None = None, size: int = GIB, **data: Any) -> tuple[str, Loop]:
        """A new volume.

        :param size: bytes
        :param data: more of what Cinder says about its connection
        """
        volume_id = volume_id or uuidutils.generate_uuid()
        self.loops[volume_id] = self.useFixture(Loop(size))
        self.VOLUME_CONNECTION_INFO[volume_id] = {
            "driver_volume_type": "local", "data": {"device_path": self.loops[volume_id].path, **data}}
        return volume_id, self.loops[volume_id]

    def fake_get(self, context: Any, volume_id: str, microversion: str | None = None) -> dict[str, Any]:
        found = super().fake_get(context, volume_id, microversion)
        return found | {"size": self.loops[volume_id].size} if volume_id in self.loops else found

    def attached(self, volume_id: str) -> list[str]:
        """Servers that the volume is attached to."""
        return [attachment["instance_uuid"] for attachment in self.volume_to_attachment[volume_id].values()]
