# SPDX-License-Identifier: Apache-2.0
"""Check that a node can run VMs on LXD; report problems with remedies."""

from collections.abc import Iterable

from containerhost.errors import EngineError
from containerhost.images import rebuild
from lxdone import backend, conf
from onedriver.node.vnc import glyphs
from onedriver.setup import nodechecks

COMMANDS = ("lxdone", "lxdone-monitor")
# OpenNebula's transfer drivers run qemu-img on the node to enlarge a disk to its SIZE; without it they only report that
# they cannot resize it.
TOOLS = (*rebuild.TOOLS, "qemu-img")
USES = (("vmm", "deploy"), ("probe", "host/system"))
OLDEST = {"lxd": (5, 0), "incus": (6, 0)}


def check(user: str) -> dict[str, list[str]]:
    """Check this node for the user that OpenNebula's front-end logs in as, and return complaints by topic."""
    return nodechecks.run(conf.load, user, COMMANDS, TOOLS, USES,
                          {"engine": engine, "consoles": consoles, "containers": containers, "memlock": memlock})


def engine() -> Iterable[str]:
    chosen = conf.load()
    lxd = backend.engine(chosen)
    server = lxd.server()
    if nodechecks.version(server.version) < OLDEST.get(server.name, (0,)):
        yield f"{server.name} {server.version} is too old; install {'.'.join(map(str, OLDEST[server.name]))} or later"
    lxd.pool(chosen.storage_pool)


def containers() -> Iterable[str]:
    """Report containers of VMs that OpenNebula deleted without a script, as during a boot."""
    chosen = conf.load()
    client = "incus" if backend.engine(chosen).server().name == "incus" else "lxc"
    for state in backend.reconciler(chosen).orphans():
        yield (f"{nodechecks.orphan(state, f'{client} delete --force {state.name}')}. The next round of monitoring "
               "removes the rest")


def memlock() -> Iterable[str]:
    chosen = conf.load()
    try:
        daemon = backend.engine(chosen).client.server()["environment"].get("server_pid", 0)
    except EngineError:
        return ()  # reported by the check of the engine
    return nodechecks.memlock(chosen.memlock, daemon)


def consoles() -> Iterable[str]:
    """Report that consoles cannot be provided; VMs run without them."""
    glyphs.font()
    return ()
