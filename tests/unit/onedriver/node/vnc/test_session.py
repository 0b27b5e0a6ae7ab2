# SPDX-License-Identifier: Apache-2.0
import socket
import threading
from collections.abc import Callable

import testtools
from testtools.content import text_content

from onedriver.node.vnc import framebuffer, glyphs, session
from onedriver.node.vnc.rfb import NotRfb
from tests.rfbclient import Viewer

TIMEOUT = 10  # s


class SessionCase(testtools.TestCase):
    def begun(self, password: str | None = None) -> tuple[socket.socket, socket.socket]:
        """:returns: the client's socket and the guest's"""
        here, client = socket.socketpair()
        guest, there = socket.socketpair()
        guest.settimeout(TIMEOUT)
        self.failed: list[Exception] = []
        self.addOnException(lambda _: self.addDetail("how the session ended", text_content(repr(self.failed))))
        self.places: list[str | None] = []

        def serve() -> None:
            with client, there:
                serve_both()

        def serve_both() -> None:
            try:
                session.greet(client, password, "one-1", lambda: self.places.append(password))
                there.sendall(session.ADMITTED)
                session.Session(client, there).run()
            except (NotRfb, OSError) as error:
                self.failed.append(error)

        self.thread = threading.Thread(target=serve, daemon=True)
        self.thread.start()
        self.addCleanup(self.thread.join, TIMEOUT)
        for end in (here, guest):
            self.addCleanup(end.close)
        return here, guest

    def viewed(self) -> tuple[Viewer, socket.socket]:
        here, guest = self.begun()
        viewer = Viewer(here)
        self.assertEqual(session.ADMITTED, guest.recv(1))
        viewer.ask(changes_only=False)
        viewer.update()
        return viewer, guest

    def dots(self, viewer: Viewer, line: int, column: int) -> list[str]:
        """One letter, as a picture of signs."""
        rows = viewer.framebuffer[line * glyphs.HEIGHT:(line + 1) * glyphs.HEIGHT]
        places = range(column * glyphs.WIDTH, (column + 1) * glyphs.WIDTH)
        return ["".join("#" if any(row[4 * place:4 * place + 3]) else "." for place in places) for row in rows]


class SessionTest(SessionCase):
    def test_a_picture_of_the_whole_screen(self) -> None:
        viewer, _ = self.viewed()
        self.assertEqual(("one-1", 640, 384), (viewer.name, viewer.width, viewer.height))
        self.assertEqual(["#" * 8] * 16, self.dots(viewer, 0, 0))  # the cursor
        self.assertEqual(["." * 8] * 16, self.dots(viewer, 23, 79))

    def test_only_what_changes_is_sent(self) -> None:
        viewer, guest = self.viewed()
        viewer.ask()
        guest.sendall("\x1b[3;5Hl│".encode())
        self.assertEqual([(0, 0, 8, 16), (32, 32, 24, 16)], viewer.update())
        letter = self.dots(viewer, 2, 5)
        self.assertEqual(1, len(set(letter)), letter)  # a line from its top to its bottom

    def test_keys_come_to_the_guest(self) -> None:
        viewer, guest = self.viewed()
        viewer.type("ls\n")
        viewer.press(0xFFE3, ord("c"))
        typed = b""
        while not typed.endswith(b"\x03"):
            typed += guest.recv(100)
        self.assertEqual(b"ls\r\x03", typed)

    def test_questions_of_before_the_visit_are_not_answered(self) -> None:
        viewer, guest = self.viewed()
        viewer.ask()
        guest.sendall(b"\x1b[6nx")
        viewer.update()
        viewer.type("y")
        self.assertEqual(b"y", guest.recv(100))
        guest.sendall(b"\x1b[6n")
        self.assertEqual(b"\x1b[1;2R", guest.recv(100))

    def test_other_pixels(self) -> None:
        viewer, _ = self.viewed()
        viewer.set_format(16, True, (31, 63, 31), (11, 5, 0))
        viewer.ask(changes_only=False)
        self.assertEqual(24, len(viewer.update(size=2)))
        self.assertEqual(b"\xad\x55", bytes(viewer.framebuffer[0][:2]))

    def test_strangers_are_turned_away(self) -> None:
        for greeting in (b"RFB 003.003\n", b"GET / HTTP/1", b"RFB 003.008\n\x02", b"RFB 003.008\n\x10"):
            here, _ = self.begun()
            here.sendall(greeting)
            self.thread.join(TIMEOUT)
            self.assertIsInstance(self.failed[0], NotRfb)

    def test_it_ends_with_either_end(self) -> None:
        ends: dict[str, Callable[[Viewer, socket.socket], None]] = {
            "viewer": lambda viewer, _: viewer.close(), "guest": lambda _, guest: guest.close()}
        for end, close in ends.items():
            close(*self.viewed())
            self.thread.join(TIMEOUT)
            self.assertFalse(self.thread.is_alive(), end)

    def test_a_guest_that_does_not_read_holds_up_nobody(self) -> None:
        viewer, guest = self.viewed()
        viewer.type("x" * 3000)
        viewer.ask()
        guest.sendall(b"\rhello")
        self.assertEqual([(0, 0, 48, 16)], viewer.update())

    def test_letters_are_as_wide_as_a_cell(self) -> None:
        self.assertEqual(framebuffer.WIDTH, 80 * glyphs.WIDTH)
        self.assertEqual(bytes([255] * glyphs.HEIGHT), glyphs.dots("█", False))
        self.assertEqual(bytes(glyphs.HEIGHT), glyphs.dots(" ", False))
        self.assertEqual(255, glyphs.dots(" ", True)[glyphs.UNDERLINE])
