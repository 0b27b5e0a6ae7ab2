# SPDX-License-Identifier: Apache-2.0
"""A machine of the cloud: an emulated host with files, a name and a cable of its own. It ends with its namespaces."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

CHECKOUT = Path(__file__).parents[2]
FAKEHOST = CHECKOUT / "tools/fakehost"
REGISTRY = Path("/run/fakehost")
OWN = ("/tmp", "/run", "/root")  # noqa: S108 - empty on every machine
NODES_OWN = (*OWN, "/var/tmp")  # noqa: S108
TIMEOUT = 300  # s for one command
POLL_INTERVAL = 0.2  # s

# $1 directory for what is written, $2 lines for /etc/hosts, $3 the directory of Python, which oneadmin must reach also
# where it is root's, then the directories that get a layer of their own. A layer hides what the emulated host mounted
# below its directory: only the front-end, which needs no devices, has one over all of /usr.
SETUP = """
set -e
home=$1; hosts=$2; python=$3; shift 3
case $python in /root/*)
    mkdir "$home/python"
    mount --bind "$python" "$home/python"
    mount -t tmpfs -o mode=755 tmpfs /root
    mkdir -p "$python"
    mount --move "$home/python" "$python" ;;
esac
for directory; do
    mkdir -p "$home$directory/upper" "$home$directory/work"
    layer=$home$directory
    mount -t overlay overlay -o "lowerdir=$directory,upperdir=$layer/upper,workdir=$layer/work" "$directory"
done
rm -rf /var/lib/onedock /var/lib/lxdone /var/lib/containerhost
mount -t tmpfs -o mode=755 tmpfs /run
mount -t tmpfs -o mode=1777 tmpfs /tmp
mkdir -p /run/lock /run/sshd
printf '127.0.0.1 localhost\\n%s' "$hosts" > /etc/hosts
getent group oneadmin > /dev/null || groupadd --gid 9869 oneadmin
getent passwd oneadmin > /dev/null ||
    useradd --uid 9869 --gid 9869 --home-dir /var/lib/one --shell /bin/bash --password '*' oneadmin
mkdir -p /var/lib/one/.ssh
chown -R oneadmin:oneadmin /var/lib/one
"""
SSHD = """
ssh-keygen -q -t ed25519 -N '' -f /etc/ssh/ssh_host_ed25519_key < /dev/null 2> /dev/null || true
exec /usr/sbin/sshd -D -o UsePAM=no -o PidFile=none -o StrictModes=no -o PasswordAuthentication=no
"""


class MachineFailed(RuntimeError):
    """A command failed, or something did not come to be in time."""


def require_seen(checkout: Path, source: Path) -> None:
    """:param source: of OpenNebula, which only the front-end needs
    :raises MachineFailed: the machines would not see one of both
    """
    for directory, places in (checkout, NODES_OWN), (source, OWN):
        if any(directory.is_relative_to(place) for place in places):
            raise MachineFailed(f"{directory} is below one of {', '.join(places)}, of which every machine has its own: "
                                "move it, for instance to /opt")


class Machine:
    """:param home: directory for what is written on it
    :param address: its own on the cable
    :param layers: directories of which it has its own layer
    """

    def __init__(self, prefix: str, name: str, home: Path, address: str, layers: Sequence[str]) -> None:
        self.name = name
        self.home = home
        self.address = address
        self._host = f"{prefix}-{name}"
        self._layers = layers

    @property
    def pid(self) -> int:
        """Return the pid of its first process, through which its namespaces can be entered."""
        return int(json.loads((REGISTRY / self._host).read_text())["init"])

    @property
    def up(self) -> bool:
        return subprocess.run([*self._fakehost("--join", self._host), "--", "true"], capture_output=True,
                              check=False).returncode == 0

    def start(self, hosts: str) -> None:
        """:param hosts: further lines for its /etc/hosts"""
        self.home.mkdir(parents=True)
        run([*self._fakehost("--host", "small", "--name", self._host, "--detach")])
        await_that(lambda: self.up, f"{self.name} is up")
        self.run("sh", "-c", SETUP, "sh", str(self.home), hosts, sys.base_prefix, *self._layers)

    def stop(self) -> None:
        run([*self._fakehost("--stop", self._host)])

    def there(self, *command: str, user: str | None = None) -> list[str]:
        """Return a command line that runs a command on the machine, under its name.

        :param user: None is root
        """
        as_user = ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups", "--reset-env"] if user else []
        return [*self._fakehost("--join", self._host), "--", "unshare", "--uts", "sh", "-c",
                'hostname "$0"; exec "$@"', self.name, *as_user, *command]

    def run(self, *command: str, user: str | None = None, given: str = "") -> str:
        """:param given: what it reads
        :returns: what it printed
        :raises MachineFailed: its status is not 0
        """
        return run(self.there(*command, user=user), given)

    def begin(self, name: str, *command: str, user: str | None = None) -> "subprocess.Popen[bytes]":
        """Start a daemon, whose log is ``NAME.log`` in the machine's directory."""
        with (self.home / f"{name}.log").open("ab") as log:
            return subprocess.Popen(self.there(*command, user=user), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                    start_new_session=True)

    def begin_ssh(self) -> None:
        self.begin("sshd", "sh", "-c", SSHD)

    @staticmethod
    def _fakehost(*words: str) -> list[str]:
        return [sys.executable, str(FAKEHOST), *words]


def connect(hub: Machine, others: Sequence[Machine]) -> None:
    """Cables from a bridge of the hub to every other machine."""
    def link(machine: Machine, *words: str) -> None:
        run(["nsenter", f"--target={machine.pid}", "--net", "ip", *words])

    link(hub, "link", "add", "cloud", "type", "bridge")
    link(hub, "address", "add", f"{hub.address}/24", "dev", "cloud")
    link(hub, "link", "set", "cloud", "up")
    for machine in others:
        port = f"to-{machine.name}"
        link(hub, "link", "add", port, "type", "veth", "peer", "name", "cloud", "netns", str(machine.pid))
        link(hub, "link", "set", port, "master", "cloud", "up")
        link(machine, "address", "add", f"{machine.address}/24", "dev", "cloud")
        link(machine, "link", "set", "cloud", "up")


def run(command: Sequence[str], given: str = "") -> str:
    """Run a command.

    :raises MachineFailed: its status is not 0
    """
    try:
        done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    except subprocess.TimeoutExpired as error:
        raise MachineFailed(f"{' '.join(command)[-200:]}: not done after {TIMEOUT} s") from error
    if done.returncode:
        said = (done.stderr + done.stdout)[-2000:]
        raise MachineFailed(f"{' '.join(command)[-200:]}: status {done.returncode}: {said}")
    return done.stdout


def await_that(condition: Callable[[], bool], what: str, timeout: float = 120,
               interval: float = POLL_INTERVAL) -> None:
    """Wait until a condition holds.

    :raises MachineFailed: it is not so after that many seconds
    """
    end = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > end:
            raise MachineFailed(f"{what}: not so after {timeout:g} s")
        time.sleep(interval)
