# SPDX-License-Identifier: Apache-2.0
"""Build the parts of the service from its options."""

from containerhost.elastic.gpus import EngineGpus
from containerhost.elastic.service import ManagedEngine
from containerhost.engines import local
from containerhost.guest.guestfiles import GuestFiles
from containerhost.guest.guestnotice import GuestNotice


def engine(text: str, settings: local.Settings) -> tuple[str, ManagedEngine]:
    """Return an engine by its name.

    :param text: ``lxd``, ``incus`` or ``docker``; or with its endpoint, ``docker=unix:///run/docker.sock``
    :raises SpecError: there is no such engine
    """
    name, _, endpoint = text.partition("=")
    found = local.load(name, local.Settings(endpoint, settings.project, settings.locks, settings.records))
    # The service measures the notice period itself, so the notice must not wait.
    notice = GuestNotice(GuestFiles(found.engine.pid, found.privileged), 0)
    gpus = EngineGpus(found.engine, found.marks, found.privileged, settings.locks) if found.marks else None
    return name, ManagedEngine(found.engine, found.sizes, notice, gpus)
