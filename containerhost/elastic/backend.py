# SPDX-License-Identifier: Apache-2.0
"""Build the service's parts of its options; the one module here that names engines' packages."""

from pathlib import Path

from containerhost.elastic.gpus import EngineGpus
from containerhost.elastic.service import ManagedEngine
from containerhost.errors import SpecError
from containerhost.inside.guestfiles import GuestFiles
from containerhost.inside.guestnotice import GuestNotice
from containerhost.privileged import Privileged

ENGINES = ("lxd", "incus", "docker")


def engine(text: str, project: str, locks: Path, records: Path) -> tuple[str, ManagedEngine]:
    """Return an engine by its name.

    :param text: ``lxd``, ``incus`` or ``docker``; or with its endpoint, ``docker=unix:///run/docker.sock``
    :param project: of LXD or Incus; empty is the default one
    :param locks: the directory that all drivers of the host share
    :param records: of Docker's containers
    :raises SpecError: there is no such engine
    """
    name, _, endpoint = text.partition("=")
    if name not in ENGINES:
        raise SpecError(f"{name[:60]!r} is no engine; say {', '.join(ENGINES)}, if need be with =ENDPOINT")
    return name, _docker(endpoint, records) if name == "docker" else _lxd(name, endpoint, project, locks)


def _lxd(name: str, endpoint: str, project: str, locks: Path) -> ManagedEngine:
    from containerhost.engines.lxd.client import LxdClient, Settings  # noqa: PLC0415  (not every host has LXD)
    from containerhost.engines.lxd.engine import LxdEngine  # noqa: PLC0415
    from containerhost.engines.lxd.live import Live  # noqa: PLC0415

    usual = "/var/lib/incus/unix.socket" if name == "incus" else None
    privileged = Privileged()
    found = LxdEngine(LxdClient(Settings(endpoint=endpoint or usual, project=project or None)), privileged, locks=locks)
    live = Live(found, privileged)
    return ManagedEngine(found, live, notice(GuestFiles(found.pid, privileged)),
                         EngineGpus(found, live, privileged, locks))


def _docker(endpoint: str, records: Path) -> ManagedEngine:
    from containerhost.engines.docker.client import DockerClient, Settings  # noqa: PLC0415  (an extra)
    from containerhost.engines.docker.engine import DockerEngine  # noqa: PLC0415
    from containerhost.engines.docker.live import Live  # noqa: PLC0415
    from containerhost.engines.docker.privileged import DockerPrivileged  # noqa: PLC0415

    settings = Settings(endpoint) if endpoint else Settings()
    found = DockerEngine(DockerClient(settings), DockerPrivileged(), records)
    return ManagedEngine(found, Live(found), notice(GuestFiles(found.pid, DockerPrivileged())))


def notice(files: GuestFiles) -> GuestNotice:
    return GuestNotice(files, 0)  # the service itself keeps the time, and waits for none
