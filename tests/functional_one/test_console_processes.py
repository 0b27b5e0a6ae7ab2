# SPDX-License-Identifier: Apache-2.0
import contextlib
import json
import logging
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import fixtures
import testtools
from websockets.sync.client import ClientConnection, connect

from onedriver import document, vm
from onedriver.node import consoles, single_instance
from onedriver.node.consoles import Consoles
from onedriver.node.vnc import server
from onedriver.vm import Vm
from tests import levels
from tests.functional_one import catclient
from tests.ports import free_port
from tests.rfbclient import Refused, Viewer
from tests.unit.onedriver.samples import changed
from tests.waiting import await_that

LINE = 16  # dots
# noVNC's: copies, Tight, TightPNG, ZRLE, JPEG, Hextile, RRE, raw; qualities, cursors, sizes, keys by place, fences.
ENCODINGS = (1, 7, -260, 16, 21, 5, 2, 0, -26, -254, -223, -224, -258, -261, -308, -307, -309, -312, -313, -0x3F5E1A32,
             0x574D5664, -239)


def listens(port: int) -> bool:
    with contextlib.suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False


class WebSocket:
    """A websocket as what a viewer takes for a socket."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._received = b""
        self.sendall = connection.send

    def settimeout(self, timeout: float) -> None:
        self._timeout = timeout

    def recv(self, size: int) -> bytes:
        if not self._received:
            self._received = self._connection.recv(self._timeout)
        piece, self._received = self._received[:size], self._received[size:]
        return piece


class ConsolesTest(testtools.TestCase):
    """The container is a process that sleeps. Its number is that of this process: tests run side by side."""

    def setUp(self) -> None:
        super().setUp()
        self.state = Path(self.useFixture(fixtures.TempDir()).path)
        self.useFixture(fixtures.EnvironmentVariable(catclient.STATE, str(self.state)))
        self.useFixture(fixtures.EnvironmentVariable("PYTHONPATH", str(Path(__file__).parents[2])))  # of the client
        self.logged = self.useFixture(fixtures.FakeLogger(level=logging.INFO))
        self.vm_id = os.getpid()
        self.name = f"one-{self.vm_id}"
        self.container = self.started()
        self.consoles = Consoles(self.state, catclient.__name__, lambda name: self.container.pid)
        self.addCleanup(self.consoles.end, self.name)
        self.port = free_port()

    def started(self) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(["sleep", "1000"])
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def vm(self, **graphics: str) -> Vm:
        xml = "".join(f"<{key}>{value}</{key}>" for key, value in graphics.items())
        data = changed("deployment.xml")
        element = document.parse(data, "VM")
        element.find("ID").text = str(self.vm_id)
        old = element.find("TEMPLATE/GRAPHICS")
        old.getparent().replace(old, document.parse(f"<GRAPHICS>{xml}</GRAPHICS>".encode(), "GRAPHICS"))
        return vm.vm(element)

    def wanted(self, **more: str) -> Vm:
        return self.vm(**({"TYPE": "VNC", "LISTEN": "127.0.0.1", "PORT": str(self.port), "PASSWD": "secret"} | more))

    def viewer(self, password: str | None = "secret") -> Viewer:
        viewer = Viewer.at(self.port, password)
        self.addCleanup(viewer.close)
        return viewer

    def is_there(self, kind: str = consoles.HOLDER) -> bool:
        return kind + self.name in single_instance.names()

    def servers(self) -> list[int]:
        """Return the ids of this process's children that serve; one of a server's has its command line until exec."""
        children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
        return [int(child) for child in children
                if f"vnc.server\0{catclient.__name__}\0{self.name}\0" in command(Path("/proc", child))]

    def test_a_client_sees_what_was_printed_and_types(self) -> None:
        self.consoles.provide(self.wanted())
        viewer = self.viewer()
        self.assertEqual(self.name, viewer.name)
        viewer.ask(changes_only=False)
        viewer.update()
        if not any(viewer.framebuffer[LINE + 8]):
            viewer.ask()
            viewer.update()
        viewer.type("ab\n")
        await_that(lambda: viewer.ask() or viewer.update(), "what is typed is printed")
        self.assertTrue(any(viewer.framebuffer[LINE + 8][:64]))

    def test_by_way_of_a_websocket_as_a_browser_has_it(self) -> None:
        """Send what noVNC sends after the greeting: its pixel format, all encodings it knows, and what was copied."""
        self.consoles.provide(self.wanted())
        with self.websockify() as address, connect(address, subprotocols=["binary"], proxy=None) as web:
            connection = WebSocket(web)
            viewer = Viewer(connection, "secret")
            viewer.set_format(32, False, (255, 255, 255), (0, 8, 16))
            connection.sendall(struct.pack(f">BxH{len(ENCODINGS)}i", 2, len(ENCODINGS), *ENCODINGS))
            connection.sendall(struct.pack(">BBHH", 5, 1, 10, 10))
            connection.sendall(struct.pack(">BxxxI", 6, 6) + b"copied")
            viewer.ask(changes_only=False)
            self.assertEqual(viewer.width * viewer.height, sum(width * height for *_, width, height in viewer.update()))
            for key in (0xE4, 0x010020AC, 0x01000416):  # ä, €, Ж
                viewer.press(key)
            viewer.press(0xFF0D)
            await_that(lambda: viewer.ask() or viewer.update(), "what is typed is printed")

    @contextlib.contextmanager
    def websockify(self) -> Iterator[str]:
        port = free_port()
        with subprocess.Popen([sys.executable, "-m", "websockify", f"127.0.0.1:{port}", f"127.0.0.1:{self.port}"],
                              stderr=subprocess.DEVNULL) as proxy:
            try:
                await_that(lambda: listens(port), "the proxy listens")
                yield f"ws://127.0.0.1:{port}/"
            finally:
                proxy.terminate()

    def test_only_who_knows_the_password_has_it(self) -> None:
        self.consoles.provide(self.wanted())
        first = self.viewer()
        self.assertRaises(Refused, self.viewer, "wrong")
        first.ask(changes_only=False)
        self.assertTrue(first.update())
        await_that(lambda: self.is_there(consoles.CLIENT), "the console is attached")
        self.viewer()
        self.assertTrue(first.hung_up())

    def test_silent_connections_keep_no_viewer_out(self) -> None:
        self.consoles.provide(self.wanted())
        first = self.viewer()
        for _ in range(3 * server.MAX_CLIENTS):
            self.addCleanup(socket.create_connection(("127.0.0.1", self.port)).close)
        first.ask(changes_only=False)
        self.assertTrue(first.update())
        self.viewer()

    @levels.exhaustive("a console that lives as its VM does is in test_console")
    def test_it_ends_with_its_container(self) -> None:
        self.consoles.provide(self.wanted())
        self.assertTrue(self.is_there())
        self.container.kill()
        await_that(lambda: not self.is_there(), "it ends")
        self.assertRaises(ConnectionRefusedError, self.viewer)

    @levels.exhaustive("a console that lives as its VM does is in test_console")
    def test_it_ends_when_it_is_to(self) -> None:
        self.consoles.provide(self.wanted())
        viewer = self.viewer()
        viewer.ask(changes_only=False)
        viewer.update()
        await_that(lambda: self.is_there(consoles.CLIENT), "the console is attached")
        for _ in range(2):
            self.consoles.end(self.name)
            self.assertFalse(self.is_there() or self.is_there(consoles.CLIENT))
        self.assertTrue(viewer.hung_up())
        self.assertEqual([], list((self.state / self.name).iterdir()))

    @levels.exhaustive("a console that lives as its VM does is in test_console")
    def test_it_goes_on_unless_it_is_to_be_another(self) -> None:
        self.consoles.provide(self.wanted())
        viewer = self.viewer()
        self.consoles.provide(self.wanted())
        viewer.ask(changes_only=False)
        self.assertTrue(viewer.update())
        self.consoles.provide(self.wanted(PASSWD="another"))
        self.assertRaises(Refused, self.viewer)
        self.viewer("another")
        self.container = self.started()
        self.consoles.provide(self.wanted(PASSWD="another"))
        self.viewer("another")
        self.consoles.provide(self.vm(TYPE="SPICE", PORT="5901"))
        self.assertFalse(self.is_there())
        self.assertIn("GRAPHICS of type SPICE is ignored", self.logged.output)

    @levels.exhaustive("a console that lives as its VM does is in test_console")
    def test_a_port_that_is_taken_is_told(self) -> None:
        with socket.create_server(("127.0.0.1", self.port)):
            self.consoles.provide(self.wanted())
        self.assertIn(f"{self.name} has no console at port {self.port} of 127.0.0.1", self.logged.output)
        self.assertNotIn("secret", self.logged.output)
        self.assertFalse(self.is_there())
        self.consoles.provide(self.wanted())
        self.viewer()

    def test_the_password_is_for_root_alone(self) -> None:
        self.consoles.provide(self.wanted())
        file = self.state / self.name / consoles.FILE
        self.assertEqual(0o600, file.stat().st_mode & 0o777)
        self.assertEqual("secret", json.loads(file.read_text())["vnc"]["password"])
        self.viewer()
        for process in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                self.assertNotIn(b"secret", process.read_bytes().split(b"\0"))
            except OSError:
                continue

    def test_one_that_died_comes_back_but_not_in_a_hurry(self) -> None:
        self.consoles.provide(self.wanted())
        self.assertEqual((), self.consoles.dead([self.name]))
        await_that(self.servers, "its process has become the server")
        (process,) = self.servers()
        os.kill(process, signal.SIGKILL)
        await_that(lambda: not self.is_there(), "it is killed")
        self.assertEqual((), self.consoles.dead([self.name]))
        file = self.state / self.name / consoles.FILE
        os.utime(file, (0, 0))
        self.assertEqual((), self.consoles.dead(["one-0"]))
        self.assertEqual((self.name,), self.consoles.dead([self.name]))
        self.consoles.revive(self.name)
        self.viewer()
        os.utime(file, (0, 0))
        self.assertEqual((), self.consoles.dead([self.name]))


def command(process: Path) -> str:
    try:
        return (process / "cmdline").read_text()
    except OSError:
        return ""
