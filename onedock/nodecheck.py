# SPDX-License-Identifier: Apache-2.0
"""Check that a node can run VMs on Docker; report problems with remedies."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from containerhost.engines.contract import ContainerState
from containerhost.engines.docker.config import RUNTIME
from onedock import backend, conf
from onedriver.node.names import LABEL
from onedriver.setup import nodechecks

COMMANDS = ("onedock", "onedock-monitor", "containerhost-docker-runtime", "containerhost-ociruntime")
TOOLS = ("tar", "unshare", "mkfs.ext4", "resize2fs")
USES = (("vmm", "deploy"), ("probe", "host/system"), ("image", "release"), ("leave", "1", "0"), ("drop", "1"),
        ("lock", "1", "0", "1"))
OLDEST = (20, 10)
#: Storage in which an image's id is that of its configuration, as the datastore knows it.
SNAPSHOTTER = "io.containerd.snapshotter"


def check(user: str) -> dict[str, list[str]]:
    """Check this node for the user that OpenNebula's front-end logs in as, and return complaints by topic."""
    return nodechecks.run(conf.load, user, COMMANDS, TOOLS, USES,
                          {"engine": engine, "containers": containers, "memlock": memlock})


def engine() -> Iterable[str]:
    return of_engine(backend.engine(conf.load()).client.info())


def containers() -> Iterable[str]:
    """Report containers that OpenNebula does not know on this node, as after a live migration that it lost."""
    chosen = conf.load()
    return orphans(backend.engine(chosen).containers(), Path(chosen.datastores))


def orphans(found: Iterable[ContainerState], datastores: Path) -> Iterable[str]:
    """Report containers whose VMs' directories are in no datastore."""
    for state in found:
        vm_id = state.labels.get(LABEL, "")
        if vm_id.isdecimal() and not any(datastores.glob(f"*/{vm_id}")):
            yield nodechecks.orphan(state, f"onedock drop {vm_id}")


def memlock() -> Iterable[str]:
    chosen = conf.load()
    try:
        daemon = nodechecks.peer(chosen.endpoint.removeprefix("unix://"))
    except OSError:
        return ()  # the check of the engine says so
    return nodechecks.memlock(chosen.memlock, daemon)


def of_engine(info: Mapping[str, Any]) -> Iterable[str]:
    """Check Docker's description of itself (``GET /info``)."""
    version = str(info.get("ServerVersion", ""))
    if nodechecks.version(version) < OLDEST:
        yield f"Docker {version} is too old; install {'.'.join(map(str, OLDEST))} or later"
    if RUNTIME not in (info.get("Runtimes") or {}):
        yield (f"Docker has no runtime {RUNTIME}, which gives containers their devices: name "
               f"containerhost-docker-runtime in /etc/docker/daemon.json, as the manual shows, and restart Docker")
    if any(SNAPSHOTTER in str(pair) for pair in info.get("DriverStatus") or ()):
        yield ("Docker keeps images in containerd, where they have other ids than this driver knows: set "
               '"features": {"containerd-snapshotter": false} in /etc/docker/daemon.json')
