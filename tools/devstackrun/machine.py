# SPDX-License-Identifier: Apache-2.0
"""Run a machine: a system container with systemd on an emulated host, reachable from nowhere outside.

Its network reaches out. It ends with the emulated host's namespaces."""

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tools.cloud.layout import CHECKOUT
from tools.devstackrun import tree

DIRECTORY = CHECKOUT / ".devstack"
LOGS = DIRECTORY / "logs"  # they outlive the machine
SOURCES = DIRECTORY / "sources"  # the machine has it at localconf.SOURCES
NAME = "devstack-" + hashlib.sha256(str(CHECKOUT).encode()).hexdigest()[:6]
FAKEHOST = (sys.executable, str(CHECKOUT / "tools/fakehost"))
BEGIN = Path(__file__).parent / "begin"
START_TIMEOUT = 120  # s
JOURNAL_TIMEOUT = 60  # s
POLL_INTERVAL = 0.2  # s


class MachineFailed(Exception):
    """A command on the machine failed, or the machine did not start."""


class Machine:
    """:param say: for progress"""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self.home = DIRECTORY / "machine"
        self.root = self.home / "root"

    @property
    def up(self) -> bool:
        return self._init is not None

    def start(self, host: str) -> None:
        """Make and start the machine.

        :param host: of tools/fakehost, a name or a file
        :raises MachineFailed: systemd did not come up
        """
        LOGS.mkdir(parents=True, exist_ok=True)
        tree.make(self.root, tree.base(DIRECTORY, self._say))
        self._run([*FAKEHOST, "--host", host, "--name", NAME, "--detach"])
        first = self._begin("begin", *FAKEHOST, "--join", NAME, "--", str(BEGIN), str(self.root), str(CHECKOUT),
                            str(SOURCES), str(DIRECTORY / "cache"))
        self._await(lambda: self._record_init(first), "systemd starts")
        self._begin("slirp4netns", "slirp4netns", "--configure", "--disable-host-loopback", "--mtu=65520",
                    str(self._init), "tap0")
        self._await(lambda: self._state() in ("running", "degraded"), "systemd is up")
        self._await(lambda: "tap0" in self.root_command("ip", "-brief", "address"), "the network is there")

    def stop(self) -> None:
        """End the machine and remove its files. Idempotent; what its services logged stays in the directory of logs."""
        self._save_journal()
        subprocess.run([*FAKEHOST, "--stop", NAME], capture_output=True, check=False)
        for file in self.home.glob("*.pid"):
            _end(int(file.read_text()), file.stem)
        shutil.rmtree(self.home, ignore_errors=True)

    def there(self, *command: str, user: str = tree.USER, time_limit: float | None = None) -> list[str]:
        """Return a command line that runs a command on the machine, as a unit of its systemd.

        :param time_limit: seconds, after which systemd ends it
        :raises MachineFailed: the machine is not up
        """
        init = self._init
        if init is None:
            raise MachineFailed("there is no machine: `tools/devstack run --keep` leaves one")
        home = "/root" if user == "root" else tree.HOME
        limit = [f"--property=RuntimeMaxSec={time_limit:g}"] if time_limit else []
        return ["nsenter", f"--target={init}", "--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup",
                "systemd-run", "--quiet", "--pipe", "--wait", "--collect", f"--uid={user}", f"--setenv=HOME={home}",
                "--setenv=LANG=C.UTF-8", "--setenv=PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
                f"--working-directory={home}", "--property=LimitMEMLOCK=infinity", *limit, *command]

    def run(self, *command: str, user: str = tree.USER, timeout: float = 300) -> str:
        """Return what a command printed.

        :raises MachineFailed: its status is not 0
        """
        return self._run(self.there(*command, user=user, time_limit=timeout), timeout + 30)

    def root_command(self, *command: str, timeout: float = 60) -> str:
        return self.run(*command, user="root", timeout=timeout)

    def logged(self, name: str, *command: str, timeout: float) -> None:
        """Run a long command as DevStack's user; what it prints is in ``NAME.log`` of the directory of logs.

        :raises MachineFailed: its status is not 0; with the end of the log
        """
        log = LOGS / f"{name}.log"
        with log.open("wb") as output:
            done = subprocess.run(self.there(*command, time_limit=timeout), stdin=subprocess.DEVNULL, stdout=output,
                                  stderr=output, check=False)
        if done.returncode:
            end = log.read_text(errors="replace")[-3000:]
            raise MachineFailed(f"{name} ended with status {done.returncode}; {log} ends with:\n{end}")

    def write(self, path: str, text: str) -> None:
        """Write a file of DevStack's user."""
        file = self.root / path[1:]
        file.write_text(text, encoding="utf-8")
        owner = (self.root / tree.HOME[1:]).stat()
        os.chown(file, owner.st_uid, owner.st_gid)

    @property
    def _init(self) -> int | None:
        """The first process, as this machine numbers it; None if it does not run."""
        try:
            pid = int((self.home / "init").read_text())
            return pid if os.path.samefile(f"/proc/{pid}/root/{tree.HOME}", self.root / tree.HOME[1:]) else None
        except (OSError, ValueError):
            return None

    def _record_init(self, first: int) -> bool:
        """Write the number of systemd to a file: a child of the joined command, which is a child of ``first``."""
        try:
            command = Path(f"/proc/{first}/task/{first}/children").read_text().split()
            init = Path(f"/proc/{command[0]}/task/{command[0]}/children").read_text().split()
            (self.home / "init").write_text(init[0])
        except (OSError, IndexError):
            return False
        return self.up and Path(f"/proc/{init[0]}/comm").read_text() == "systemd\n"

    def _state(self) -> str:
        done = subprocess.run(["nsenter", f"--target={self._init}", "--all", "systemctl", "is-system-running"],
                              capture_output=True, text=True, check=False)
        return done.stdout.strip()

    def _save_journal(self) -> None:
        """Write the journal of DevStack's services to ``services.log``: on the machine it is in memory."""
        if not self.up:
            return
        command = ("timeout", str(JOURNAL_TIMEOUT), "nsenter", f"--target={self._init}", "--all", "journalctl",
                   "--quiet", "--no-pager", "--unit=devstack@*")
        with (LOGS / "services.log").open("wb") as log:
            done = subprocess.run(command, stdout=log, stderr=log, check=False)
        if done.returncode:
            self._say(f"the services' journal is incomplete: journalctl ended with status {done.returncode}")

    def _begin(self, name: str, *command: str) -> int:
        with (LOGS / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                       start_new_session=True)
        (self.home / f"{name}.pid").write_text(str(process.pid))
        return process.pid

    def _await(self, condition: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + START_TIMEOUT
        while not condition():
            if time.monotonic() > end:
                raise MachineFailed(f"{what}: not so after {START_TIMEOUT} s; logs are in {LOGS}")
            time.sleep(POLL_INTERVAL)

    @staticmethod
    def _run(command: Sequence[str], timeout: float = START_TIMEOUT) -> str:
        try:
            done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout,
                                  check=False)
        except subprocess.TimeoutExpired as error:
            raise MachineFailed(f"`{' '.join(command)[-300:]}`: not done after {timeout:g} s") from error
        if done.returncode:
            said = (done.stderr + done.stdout)[-3000:]
            raise MachineFailed(f"`{' '.join(command)[-300:]}` ended with status {done.returncode}: {said}")
        return done.stdout


def _end(pid: int, program: str) -> None:
    """End a process unless its number is another program's by now."""
    try:
        if program.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(pid, signal.SIGTERM)
    except (FileNotFoundError, ProcessLookupError):
        return
