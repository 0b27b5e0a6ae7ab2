"""Calls of a driver that is not there otherwise: real processes, each called as a script calls it."""

import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import fixtures
import testtools

from onedriver.standby import client, server
from tests.waiting import await_that

ROOT = Path(__file__).parents[4]
CLI = '''
import os, subprocess, sys

LOADED = ()

def main(words):
    match words[1:]:
        case ["who"]:
            print(os.getppid())
        case ["tell"]:
            print(os.environ["ASKED"], sys.stdin.read(), sorted(os.listdir("/proc/self/fd")))
            print("trouble", file=sys.stderr)
            return 7
        case ["stay", file]:
            subprocess.Popen(["sleep", "20"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                             stderr=subprocess.DEVNULL)
            with open(file, "w") as target:
                target.write(str(os.getpid()))
            sys.stdin.read()
        case ["long", word]:
            print(len(word))
        case ["version"]:
            print(1)
    return 0
'''
CONF = '''
import types
from pathlib import Path

def place():
    return Path(__file__).with_name("options")

def load():
    return types.SimpleNamespace(standby=place().read_text() == "yes")
'''


class StandbyTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        base = Path(self.useFixture(fixtures.TempDir()).path)
        self.driver = f"standby{os.getpid()}x{self.id().rpartition('.')[2][-30:]}"
        self.folder = base / self.driver
        self.folder.mkdir()
        for name, content in (("cli.py", CLI), ("conf.py", CONF), ("options", "yes")):
            (self.folder / name).write_text(content)
        self.base = base
        self.environment = {"PATH": os.environ["PATH"], "PYTHONPATH": f"{base}:{ROOT}"}
        self.place = Path(client.place(self.driver))
        self.addCleanup(shutil.rmtree, self.place.parent, ignore_errors=True)
        self.addCleanup(self.end)

    def begun(self, *words: str, **more: str) -> subprocess.Popen[str]:
        code = f"import sys; from onedriver.standby import client; sys.exit(client.run({self.driver!r}))"
        return subprocess.Popen([sys.executable, "-c", code, *words], text=True, env=self.environment | more,
                                cwd=self.base, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def call(self, *words: str, stdin: str = "", **more: str) -> tuple[int, str, str]:
        with self.begun(*words, **more) as process:
            out, err = process.communicate(stdin, timeout=60)
        return process.returncode, out, err

    def servers(self) -> list[int]:
        """Its processes that stand by."""
        own = f"onedriver.standby.server\0{self.driver}\0"
        return [int(found.parent.name) for found in Path("/proc").glob("[0-9]*/cmdline")
                if own in content_of(found) and os.getsid(int(found.parent.name)) == int(found.parent.name)]

    def end(self) -> None:
        for process in self.servers():
            os.kill(process, signal.SIGKILL)

    def warm(self) -> int:
        """:returns: the process that stands by"""
        self.assertEqual(0, self.call("vmm", "who")[0])
        await_that(self.place.exists, "a process stands by")
        (found,) = self.servers()
        return found

    # What a caller sees.

    def test_the_next_call_is_done_by_a_process_that_stands_by(self) -> None:
        standby = self.warm()
        self.assertEqual((0, f"{standby}\n", ""), self.call("vmm", "who"))
        self.assertEqual((0, f"{standby}\n", ""), self.call("probe", "who"))
        self.assertNotEqual(f"{standby}\n", self.call("other", "who")[1])

    def test_everything_of_the_caller_is_there_and_nothing_else(self) -> None:
        self.warm()
        status, out, err = self.call("vmm", "tell", stdin="a\nb", ASKED="so")
        # Its connection, and the listing itself.
        self.assertEqual((7, "so a\nb", "trouble\n"), (status, out.partition(" [")[0], err))
        self.assertEqual(5, len(out.partition(" [")[2].split(",")))

    def test_as_without_one(self) -> None:
        cold = self.call("vmm", "tell", stdin="a\nb", ASKED="so")
        self.assertEqual((7, "so a\nb", "trouble\n"), (cold[0], cold[1].partition(" [")[0], cold[2]))
        self.assertEqual([], self.servers(), "what failed leaves none behind")

    def test_several_at_once(self) -> None:
        standby = self.warm()
        waiting = self.begun("vmm", "stay", str(self.base / "pid"))
        self.assertEqual((0, f"{standby}\n", ""), self.call("vmm", "who"))
        self.assertEqual(("", ""), waiting.communicate("", timeout=60))
        self.assertEqual(0, waiting.returncode)

    def test_a_long_call(self) -> None:
        self.warm()
        self.assertEqual((0, "100000\n", ""), self.call("vmm", "long", "x" * 100_000))

    # Trouble.

    def staying(self) -> tuple[subprocess.Popen[str], int]:
        """:returns: the caller, and who does it"""
        process, file = self.begun("vmm", "stay", str(self.base / "pid")), self.base / "pid"
        await_that(lambda: file.exists() and file.read_text(), "it began")
        return process, int(file.read_text())

    def test_a_killed_caller_ends_what_it_began(self) -> None:
        standby = self.warm()
        caller, worker = self.staying()
        children = children_of(worker)
        self.assertEqual(1, len(children))
        caller.kill()
        await_that(lambda: not any(map(lives, (worker, *children))), "all of it is over")
        caller.communicate(timeout=60)
        self.assertEqual((0, f"{standby}\n", ""), self.call("vmm", "who"))

    def test_the_process_that_does_it_is_killed(self) -> None:
        self.warm()
        caller, worker = self.staying()
        os.killpg(worker, signal.SIGKILL)
        _, err = caller.communicate(timeout=60)
        self.assertEqual(1, caller.returncode)
        self.assertEqual(f"{self.driver} stay: the process that did it was killed.\n", err)

    def test_one_that_stands_by_is_killed_while_it_is_done(self) -> None:
        standby = self.warm()
        caller, _ = self.staying()
        os.kill(standby, signal.SIGKILL)
        await_that(lambda: not lives(standby), "it is gone")
        self.assertEqual(("", ""), caller.communicate("", timeout=60))
        self.assertEqual(0, caller.returncode)
        self.assertNotEqual(standby, self.warm())

    def test_one_that_does_not_answer(self) -> None:
        standby = self.warm()
        os.kill(standby, signal.SIGSTOP)
        status, out, _ = self.call("vmm", "who")
        self.assertEqual(0, status)
        self.assertEqual(str(os.getpid()), out.strip())
        os.kill(standby, signal.SIGCONT)
        self.assertEqual((0, f"{standby}\n", ""), self.call("vmm", "who"))

    def test_rubbish(self) -> None:
        standby = self.warm()
        for content in (b"x", b"\0\0", client.__file__.encode() + b"\0one\0", b""):
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
                connection.connect(str(self.place))
                self.assertEqual(client.READY, connection.recv(1))
                socket.send_fds(connection, [content], [0, 1, 2] if content else [0])
                self.assertEqual(b"", connection.recv(1))
        self.assertEqual((0, f"{standby}\n", ""), self.call("vmm", "who"))

    # Its end.

    def test_new_code_is_used_at_once(self) -> None:
        standby = self.warm()
        self.assertEqual((0, "1\n", ""), self.call("vmm", "version"))
        (self.folder / "cli.py").write_text(CLI.replace("print(1)", "print(22)"))
        self.assertEqual((0, "22\n", ""), self.call("vmm", "version"))
        await_that(lambda: not lives(standby), "the old one ends")

    def test_nothing_is_taken_from_where_the_caller_is(self) -> None:
        """sudo leaves a user in a folder of his own."""
        (self.base / "onedriver").mkdir()
        (self.base / "onedriver/__init__.py").write_text(f"open({str(self.base / 'taken')!r}, 'w')")
        script = self.base / "script"
        script.mkdir()
        (script / "call.py").write_text(f"from onedriver.standby import client\nclient.run({self.driver!r})")
        (script / self.driver).symlink_to(self.folder)
        subprocess.run([sys.executable, script / "call.py", "vmm", "who"], cwd=self.base, check=True, timeout=60,
                       capture_output=True, env=self.environment | {"PYTHONPATH": f"{script}:{ROOT}"})
        await_that(self.place.exists, "a process stands by")
        self.assertFalse((self.base / "taken").exists())

    def test_none_where_none_is_wanted(self) -> None:
        standby = self.warm()
        (self.folder / "options").write_text("no")
        self.assertEqual(0, self.call("vmm", "who")[0])
        await_that(lambda: not lives(standby), "it ends")
        self.assertFalse(self.place.exists())
        self.assertEqual(0, self.call("vmm", "who")[0])
        self.assertEqual([], self.servers())

    def test_only_one(self) -> None:
        standby = self.warm()
        done = subprocess.run([sys.executable, "-m", "onedriver.standby.server", self.driver], env=self.environment,
                              cwd=self.base, timeout=60, check=False)
        self.assertEqual(0, done.returncode)
        self.assertEqual((0, f"{standby}\n", ""), self.call("vmm", "who"))

    # Who may call.

    def test_nobody_but_root(self) -> None:
        self.warm()
        self.assertEqual(0o700, self.place.parent.stat().st_mode & 0o777)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(str(self.base / "socket"))
            listener.listen()
            self.base.chmod(0o755)
            (self.base / "socket").chmod(0o666)
            for user in (0, 65534):
                visitor = os.fork()
                if visitor == 0:
                    os.setuid(user)
                    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
                        connection.connect(listener.getsockname())
                        os._exit(0)
                connection, _ = listener.accept()
                with connection:
                    self.assertEqual(user == 0, server.is_root(connection))
                os.waitpid(visitor, 0)


def content_of(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""


def children_of(process: int) -> list[int]:
    return list(map(int, Path(f"/proc/{process}/task/{process}/children").read_text().split()))


def lives(process: int) -> bool:
    return content_of(Path(f"/proc/{process}/stat")).rpartition(")")[2].split()[:1] not in ([], ["Z"])
