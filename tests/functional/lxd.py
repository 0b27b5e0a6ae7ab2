# SPDX-License-Identifier: Apache-2.0
"""Run a real LXD (or Incus) for the functional tests: one per test process, in a directory of its own.

Root is needed, and a network namespace nobody else uses: tools/fakehost gives both. The environment variable
LXD_PROGRAM names another daemon than ``lxd``, for instance ``incusd``.
"""

import atexit
import contextlib
import functools
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import fixtures

from containerhost import errors
from containerhost.engines.lxd.client import LxdClient, Settings
from containerhost.engines.lxd.engine import LxdEngine
from containerhost.engines.lxd.images import Images
from containerhost.engines.lxd.pooldisks import PoolDisks
from tests.functional import images
from tests.functional.run_directory import RunDirectory
from tests.waiting import await_that

INCUS = "/usr/libexec/incus/incusd"
POOL = "default"
POOL_SIZE = "6GiB"  # sparse
READY_TIMEOUT = 60  # s
STOP_TIMEOUT = 60  # s
DYING = 5  # s from its last answer to the end of its process
TOLD = 4000  # characters of its log
LAST_WORDS = re.compile(r"^(panic|fatal error|SIG[A-Z]+):", re.MULTILINE)


def end_helpers(daemon: int, command: Sequence[str]) -> None:
    """End what a killed daemon would have ended: processes that it forked and that run no other program yet.

    For an idmapped mount LXD forks one that stops itself, and takes its user namespace. Without its parent it stays,
    with the daemon's socket and database open: the next daemon does not answer, and who asked the former one waits.
    """
    words = b"".join(os.fsencode(word) + b"\0" for word in command)
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            session = int((process / "stat").read_text().rpartition(")")[2].split()[3])
            if session == daemon and (process / "cmdline").read_bytes() == words:
                os.kill(int(process.name), signal.SIGKILL)


class Daemon:
    """:param program: which daemon; None is what the environment says
    :ivar directory: the daemon's state
    :ivar socket: path of its socket
    """

    def __init__(self, program: str | None = None) -> None:
        self.program = shutil.which(program or os.environ.get("LXD_PROGRAM", "lxd")) or shutil.which("incusd")
        if self.program is None:
            raise RuntimeError("Neither lxd nor incusd is on this machine. Run: sudo tools/install test")
        self._argv = (self.program, "--group", "root")
        self._home = RunDirectory()
        self.base = self._home.path
        self.base.chmod(0o711)  # the containers' own users must reach their files in it
        self.directory = self.base / "lxd"
        self.directory.mkdir()
        self.socket = str(self.directory / "unix.socket")
        self._log = self.base / "daemon.log"
        self._told = 0  # bytes of the log from before its start
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def environment(self) -> dict[str, str]:
        name = "INCUS_DIR" if Path(self.program or "").name == "incusd" else "LXD_DIR"
        return {**os.environ, name: str(self.directory)}

    @property
    def pid(self) -> int | None:
        """None where it was ended."""
        return self._process.pid if self._process else None

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._told = log.tell()
            self._process = subprocess.Popen(self._argv, env=self.environment,
                                             stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        try:
            self._command("waitready", f"--timeout={READY_TIMEOUT}")
        except subprocess.CalledProcessError as error:
            raise RuntimeError(f"{self.program} did not start: {self._log.read_text()[-TOLD:]}") from error

    def revive(self, patience: float = 0) -> str | None:
        """Start it again where it ended without having been told to.

        :param patience: seconds that its end may take yet
        :returns: how it ended; None where it did not
        """
        if self._process is None:
            return None
        try:
            status = self._process.wait(patience)
        except subprocess.TimeoutExpired:
            return None
        log = self._log.read_bytes()[self._told:].decode(errors="replace")
        words = LAST_WORDS.search(log)
        self.start()
        return (f"{self.program} ended by itself (status {status}); its log: "
                f"{log[words.start():][:TOLD] if words else log[-TOLD:]}")

    def stop(self) -> None:
        """End the daemon; its containers run on, as when its package is upgraded."""
        if self._process is None:
            return
        self._process.terminate()
        self._process.wait(STOP_TIMEOUT)
        self._process = None

    def kill(self) -> None:
        """End the daemon at once, in whatever it is doing."""
        if self._process:
            self._process.kill()
            self._process.wait(STOP_TIMEOUT)
            end_helpers(self._process.pid, self._argv)
            self._process = None

    def pause(self, paused: bool) -> None:
        """Let the daemon neither answer nor hang up."""
        if self._process:
            self._process.send_signal(signal.SIGSTOP if paused else signal.SIGCONT)
            if paused:  # each thread stops when it gets there, and one may be about to answer
                tasks = Path("/proc", str(self._process.pid), "task")
                await_that(lambda: all(") T " in task.read_text() for task in tasks.glob("*/stat")), "LXD is stopped")

    def client(self, **settings: object) -> LxdClient:
        return LxdClient(Settings(endpoint=self.socket, **settings))

    def make_pool(self) -> None:
        """Make a btrfs pool in a file, which holds a root disk to its size; a directory without btrfs."""
        client = self.client()
        try:
            client.finish(client.request("post", "storage-pools", asked="make the pool", json={
                "name": POOL, "driver": "btrfs", "config": {"size": POOL_SIZE}}), "make the pool")
        except errors.EngineError as error:
            print(f"no btrfs pool ({error}): root disks are not held to their size")
            client.finish(client.request("post", "storage-pools", asked="make the pool", json={
                "name": POOL, "driver": "dir", "config": {}}), "make the pool")

    def remove(self) -> None:
        """End everything and leave nothing, whatever state a failed test left the daemon in."""
        try:
            self.kill()
            self.start()
            self._empty()
            self.stop()
        finally:
            self.kill()
            for mount in reversed(mounts_below(self.base)):
                subprocess.run(["umount", "--lazy", mount], check=True)
            self._home.remove()

    def _empty(self) -> None:
        engine = LxdEngine(self.client())
        for container in engine.containers():
            engine.delete(container.name)
        for image in engine.client.images():
            engine.client.delete_image(image["fingerprint"])
        engine.client.request("delete", "storage-pools", POOL, asked="remove the pool")

    def _command(self, *arguments: str) -> None:
        subprocess.run([self.program or "", *arguments], env=self.environment, check=True, capture_output=True,
                       timeout=READY_TIMEOUT + 10)


def mounts_below(directory: Path) -> list[str]:
    with open("/proc/self/mounts", encoding="utf-8") as table:
        points = [line.split()[1] for line in table]
    return [point for point in points if point.startswith(f"{directory}/")]


_lock = threading.Lock()


@functools.cache
def _shared(which: int, program: str | None) -> Daemon:
    # A terminated run cleans up like a complete one.
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    daemon = Daemon(program)
    atexit.register(daemon.remove)
    daemon.start()
    daemon.make_pool()
    return daemon


class Lxd(fixtures.Fixture):
    """:param quick: containers of the images end at once when they are shut down
    :cvar which: of the process's daemons
    :cvar program: which daemon; None is what the environment says
    :ivar daemon: the one that the process has for all of its tests
    :ivar engine: on it
    :ivar disks: further disks of its pool
    :ivar images: files of one small root file system in every format: ``unified``, ``tar.gz``, ``tar.xz``,
        ``tar.zst``, ``squashfs``
    """

    which = 1
    program: str | None = None
    pool = POOL

    def __init__(self, quick: bool = False) -> None:
        self._quick = quick

    def _setUp(self) -> None:
        with _lock:
            self.daemon = _shared(self.which, self.program)
        self.daemon.revive()
        self.socket = self.daemon.socket
        self.engine = LxdEngine(self.daemon.client(), locks=self.daemon.base)
        self.store = Images(self.engine.client)
        self.disks = PoolDisks(self.engine.client, self.pool)
        self.images = (images.all_formats(self.daemon.base / "quick-images", images.QUICK) if self._quick else
                       images.all_formats(self.daemon.base / "images"))
        self.addCleanup(self._clean)

    def _clean(self) -> None:
        """A test in which the daemon ended fails; the next one has a daemon."""
        try:
            self._delete_containers()
        except errors.EngineUnavailable:
            ended = self.daemon.revive(DYING)
            if ended is None:
                raise
            self._delete_containers()
            raise AssertionError(ended) from None

    def imported(self) -> str:
        """Fingerprint of the unified image, imported at the first call."""
        found = self.store.find("busybox")
        return found.fingerprint if found else images.imported(self.store, self.images["unified"], "busybox", {})

    def _delete_containers(self) -> None:
        for container in self.engine.containers():
            self.engine.delete(container.name)
        for disk in self.disks.all():
            self.disks.delete(disk.name)


class Incus(Lxd):
    program = INCUS
    which = 11


class SecondIncus(Incus):
    which = 12


def memlock() -> str:
    """Return the most locked memory that a container may get here: a daemon passes on no more than it has."""
    try:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    except (ValueError, PermissionError):
        hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)[1]
        return "unlimited" if hard == resource.RLIM_INFINITY else str(hard)
    return "unlimited"
