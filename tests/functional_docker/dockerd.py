# SPDX-License-Identifier: Apache-2.0
"""A real dockerd for the functional tests: one per test process, in a directory of its own, gone at its end.

Root is needed, and a network namespace of its own: tools/fakehost gives both. It makes no networks and touches
no firewall: interfaces come to its containers from outside.
"""

import atexit
import functools
import io
import json
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
from collections.abc import Mapping
from pathlib import Path

import docker
import fixtures

from containerhost.engines.docker import config
from containerhost.engines.docker.client import DockerClient, Settings
from containerhost.engines.docker.engine import DockerEngine
from containerhost.errors import EngineUnavailable
from tests.commands import script
from tests.functional.lxd import mounts_below
from tests.functional.run_directory import RunDirectory
from tests.waiting import await_that

ROOT = Path(__file__).parents[2]
BUSYBOX = "/bin/busybox"
STOP_TIMEOUT = 60  # s
TOLD = 4000  # characters of its log
OWN_MOUNT = r"/data(/[0-9]+\.[0-9]+)?"

# Programs: one that ends on SIGTERM; one that ignores it; one that prints its environment and ends.
IMAGES = {
    "polite": "trap 'echo asked to end; exit 0' TERM; echo up; while :; do sleep 1000 & wait $!; done",
    "deaf": "trap '' TERM; echo up; while :; do sleep 1000 & wait $!; done",
    "short": "echo found; find /dev -type c; ls /sys/class/net",
}


class Daemon:
    """:param options: further ones of dockerd's
    :param commands: the directory of the installed commands; None makes one of this repository's
    :param settings: of its configuration file, which must name the runtime then; None names it by an option
    :ivar configuration: that file
    :ivar runtime: what it is to name
    """

    def __init__(self, *options: str, commands: Path | None = None,
                 settings: Mapping[str, object] | None = None) -> None:
        self._home = RunDirectory()
        self.base = self._home.path
        self.base.chmod(0o711)  # a daemon that maps users has their files below it
        self.records = self.base / "records"
        self.endpoint = f"unix://{self.base}/docker.sock"
        self._log = self.base / "daemon.log"
        self._process: subprocess.Popen[bytes] | None = None
        self.runtime = self.base / "runtime"
        command = commands or self._commands()
        script(self.runtime, f"exec {command}/containerhost-docker-runtime --records {self.records}")
        by_option = () if settings is not None else ("--add-runtime", f"{config.RUNTIME}={self.runtime}")
        self._options = (*by_option, *options)
        self.configuration = self.base / "daemon.json"
        self.configuration.write_text(json.dumps(settings or {}))

    def _commands(self) -> Path:
        directory = self.base / "bin"
        directory.mkdir()
        shutil.copy2(ROOT / "bin/containerhost-docker-runtime", directory)
        begin = "import sys; from containerhost.engines.docker.ociruntime import main; sys.exit(main())"
        script(directory / "containerhost-ociruntime", f"PYTHONPATH={ROOT} exec {sys.executable} -c '{begin}'")
        return directory

    def start(self) -> None:
        program = shutil.which("dockerd")
        if program is None:
            raise RuntimeError("dockerd is not on this machine. Run: sudo tools/install test")
        # live-restore: its containers run on while it is restarted.
        command = [program, "--host", self.endpoint, "--data-root", f"{self.base}/data", "--exec-root",
                   f"{self.base}/exec", "--pidfile", f"{self.base}/pid", "--config-file", str(self.configuration),
                   "--live-restore", "--bridge", "none", "--iptables=false",
                   "--ip6tables=false", "--ip-forward=false", "--ip-masq=false",
                   *self._options]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                             start_new_session=True)
        await_that(self._answers, f"dockerd answers; its log is {self._log}")

    def _answers(self) -> bool:
        if self._process is None or self._process.poll() is not None:
            raise AssertionError(f"dockerd ended: {self._log.read_text()[-TOLD:]}")
        try:
            return bool(DockerClient(Settings(self.endpoint)).info())
        except EngineUnavailable:
            return False

    @property
    def runs(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def revive(self) -> str | None:
        """Start it again where it does not run.

        :returns: how it ended; None where it runs
        """
        if self.runs:
            return None
        words = (f"dockerd ended by itself (status {self._process.poll()}); its log: {self._log.read_text()[-TOLD:]}"
                 if self._process else "dockerd was stopped, and not started again")
        self.start()
        return words

    def stop(self) -> None:
        """:raises AssertionError: it does not end"""
        if self._process:
            self._process.terminate()
            try:
                self._process.wait(STOP_TIMEOUT)
            except subprocess.TimeoutExpired as error:
                raise AssertionError(f"dockerd does not end; its log: {self._log.read_text()[-TOLD:]}") from error
            self._process = None

    def kill(self) -> None:
        """End it at once, in whatever it is doing."""
        if self._process:
            self._process.kill()
            self._process.wait(STOP_TIMEOUT)
            self._process = None

    def client(self) -> DockerClient:
        return DockerClient(Settings(self.endpoint))

    def engine(self) -> DockerEngine:
        return DockerEngine(self.client(), records=self.records)

    def api(self) -> docker.APIClient:
        return docker.APIClient(self.endpoint, version="auto", timeout=60)

    def make_images(self) -> None:
        archive = root_file_system()
        for name, program in IMAGES.items():
            self.api().import_image_from_data(
                archive, repository=name, tag="latest", changes=[f'CMD ["/bin/sh", "-c", "{program}"]'])

    def remove(self) -> None:
        """End everything and leave nothing."""
        try:
            engine = self.engine()
            for container in engine.containers():
                engine.delete(container.name)
        finally:
            self.stop()
            for mount in reversed(mounts_below(self.base)):
                subprocess.run(["umount", "--lazy", mount], check=True)
            self._home.remove()


def root_file_system() -> bytes:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as archive:
        directory = tarfile.TarInfo("bin")  # else only root's
        directory.type, directory.mode = tarfile.DIRTYPE, 0o755
        archive.addfile(directory)
        archive.add(BUSYBOX, "bin/busybox")
        for name in subprocess.run([BUSYBOX, "--list"], capture_output=True, text=True, check=True).stdout.split():
            if name != "busybox":
                link = tarfile.TarInfo(f"bin/{name}")
                link.type, link.linkname = tarfile.SYMTYPE, "busybox"
                archive.addfile(link)
    return raw.getvalue()


_lock = threading.Lock()


@functools.cache
def shared(*options: str) -> Daemon:
    """One for all tests of this process that want the same options."""
    # A terminated run cleans up like a complete one.
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    daemon = Daemon(*options)
    atexit.register(daemon.remove)
    daemon.start()
    daemon.make_images()
    return daemon


class Docker(fixtures.Fixture):
    """:param own: a daemon of one test's own, which is started, or one that runs; None is the process's one daemon
    :ivar engine: on it
    """

    def __init__(self, own: Daemon | None = None) -> None:
        self._own = own

    def _setUp(self) -> None:
        if self._own and self._own.runs:
            self.daemon = self._own
        elif self._own:
            self.daemon = self._own
            self.daemon.start()
            self.addCleanup(self.daemon.remove)
            self.daemon.make_images()
        else:
            with _lock:
                self.daemon = shared()
        self.engine = self.daemon.engine()
        self.addCleanup(self._clean)

    def _clean(self) -> None:
        """A test that leaves no daemon fails; the next one has a daemon, and none of its containers."""
        ended = self.daemon.revive()
        self._delete_containers()
        if ended:
            raise AssertionError(ended)

    def _delete_containers(self) -> None:
        for container in self.engine.containers():
            self.engine.delete(container.name)

    def inside(self, name: str, *command: str) -> tuple[int, str]:
        """Exit status and output of a command in the container."""
        api = self.daemon.api()
        process = api.exec_create(name, list(command))
        output = api.exec_start(process)
        return api.exec_inspect(process)["ExitCode"], output.decode()


def leftovers(daemon: Daemon) -> list[str]:
    """Return what is left of containers after all were deleted."""
    directories = [daemon.records, daemon.base / "data/containers", *daemon.base.glob("data/*.*/containers")]
    files = [path for directory in directories if directory.exists() for path in directory.iterdir()
             if not path.name.startswith(".lock")]
    # dockerd's own, private one.
    mounts = {mount for mount in mounts_below(daemon.base)
              if not re.fullmatch(OWN_MOUNT, mount.removeprefix(str(daemon.base)))}
    return [*map(str, files), *sorted(mounts)]
