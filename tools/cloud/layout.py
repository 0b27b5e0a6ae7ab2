# SPDX-License-Identifier: Apache-2.0
"""Where everything of the cloud lies, and which ports it uses."""

import dataclasses
import hashlib
import json
import secrets
import sys
from pathlib import Path
from typing import Self

CHECKOUT = Path(__file__).resolve().parents[2]

# Of the names of what each compute host has: the first one's, which all else of the cloud is on, and the second one's.
SUFFIXES = FIRST, SECOND = "", "-2"
LOOPBACK = "127.0.0.1"
# A unix socket's path may have 107 bytes (unix(7)).
LONGEST_DIRECTORY = 80


@dataclasses.dataclass(frozen=True)
class Layout:
    """:ivar directory: what outlives one cloud: the prepared databases, so that the next start is quick"""

    directory: Path

    @classmethod
    def default(cls) -> Self:
        return cls(CHECKOUT / ".demo")

    def __post_init__(self) -> None:
        if len(str(self.run)) > LONGEST_DIRECTORY:
            raise ValueError(f"The path {self.run} has {len(str(self.run))} characters; unix sockets below it need a "
                             f"path of at most {LONGEST_DIRECTORY}. Move the checkout to a shorter path.")

    @property
    def run(self) -> Path:
        """Return the directory of what one cloud needs; deleted with it."""
        return self.directory / "run"

    @property
    def prepared(self) -> Path:
        return self.directory / "prepared"

    @property
    def state(self) -> Path:
        """Return the directory of what preparing makes and later starts copy: databases, keystone's keys, passwords."""
        return self.run / "state"

    @property
    def logs(self) -> Path:
        return self.run / "log"

    @property
    def engine(self) -> Path:
        """Return LXD_DIR or INCUS_DIR.

        It is not below the checkout, which is often in a private home: root of a container is nobody on the host, and
        must be able to pass through every directory above its root file system."""
        return Path(f"/var/lib/nova-lxd-demo-{hashlib.sha256(str(self.directory).encode()).hexdigest()[:6]}")

    def engine_of(self, suffix: str) -> Path:
        """:param suffix: of the compute host"""
        return self.engine.with_name(self.engine.name + suffix)

    @property
    def in_use(self) -> bool:
        """Return whether there is anything of a cloud, running or left behind."""
        return self.run.exists() or any(self.engine_of(suffix).exists() for suffix in SUFFIXES)

    @property
    def database_socket(self) -> Path:
        return self.run / "mysql.sock"

    @property
    def clouds_yaml(self) -> Path:
        return self.run / "clouds.yaml"

    def etc(self, service: str) -> Path:
        """Return the configuration directory of one service."""
        return self.run / "etc" / service


def program(name: str) -> str:
    """Return the path of a program of the virtual environment this runs in."""
    return str(Path(sys.prefix) / "bin" / name)


@dataclasses.dataclass(frozen=True)
class Shape:
    """Describe what a cloud has beside the services that every one has.

    :ivar networks: Neutron with its agents on Open vSwitch in user space, routers, DHCP, metadata and floating IPs.
        Only in a network namespace of its own
    :ivar volumes: Cinder with a backend of files on loop devices
    :ivar second_host: another compute host (:mod:`tools.cloud.secondhost`), with networks only
    :ivar dashboard: Horizon, and the exporter that its panel asks (:mod:`tools.cloud.dashboard`)
    :ivar compute: nova-compute; without, the caller configures and starts it
    :ivar notifications: nova-compute sends its versioned notifications, Neutron's API logs its own
    :ivar look: seconds between nova-compute's looks at the devices; 0: nova's default, a minute
    """

    networks: bool = False
    volumes: bool = False
    second_host: bool = False
    dashboard: bool = False
    compute: bool = True
    notifications: bool = False
    look: int = 0


PLAIN = Shape()


@dataclasses.dataclass(frozen=True)
class Ports:
    """The ones OpenStack's own documentation uses.

    :ivar address: where the services that compute hosts ask listen; all else listens on loopback
    """

    address: str = LOOPBACK
    keystone: int = 5000
    glance: int = 9292
    placement: int = 8778
    neutron: int = 9696
    nova: int = 8774
    rabbitmq: int = 5672
    rabbitmq_distribution: int = 25672
    epmd: int = 4369
    metadata: int = 8775
    ovsdb: int = 6640
    openflow: int = 6633
    cinder: int = 8776
    engine: int = 8443
    horizon: int = 8080
    exporter: int = 9869

    def url(self, service: str) -> str:
        return f"http://{self.address}:{getattr(self, service)}"

    def used(self, shape: Shape) -> dict[str, int]:
        """Return what a cloud of this shape listens at: service -> port."""
        spared = [] if shape.networks else ["metadata", "ovsdb", "openflow"]
        spared += [] if shape.volumes else ["cinder"]
        spared += [] if shape.second_host else ["engine"]
        spared += [] if shape.dashboard else ["horizon", "exporter"]
        return {name: port for name, port in vars(self).items() if name not in ("address", *spared)}


class Passwords:
    """One random password for each user of the cloud, kept in a file that only root reads."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[str, str] = json.loads(path.read_text()) if path.exists() else {}

    def __getitem__(self, user: str) -> str:
        if user not in self._known:
            self._known[user] = secrets.token_hex(16)
            write_private(self._path, json.dumps(self._known))
        return self._known[user]


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner can read, from its first moment on."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600)
    path.write_text(text)
