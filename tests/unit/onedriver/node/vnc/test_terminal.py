# SPDX-License-Identifier: Apache-2.0
import testtools
from hypothesis import given, settings
from hypothesis import strategies as st

from onedriver.node.vnc.terminal import COLUMNS, LINES, Cell, Terminal
from tests import levels

GREY, BLACK, RED = 0xAAAAAA, 0, 0xAA0000
PIECES = (b"\x1b[", b"\x1b[?", b"\x1b[>", b"\x1b]", b"\x1b(0", b"999", b";", b"H", b"m", b"r", b"L", b"@", b"\xf0\x9f")


def text(terminal: Terminal) -> list[str]:
    return ["".join(cell.letter for cell in line).rstrip() for line in terminal.cells()]


class TerminalTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.terminal = Terminal()

    def test_what_is_printed_is_shown(self) -> None:
        self.terminal.show(b"login: \r\n\xc3\xa4\xe2\x94\x80x")
        self.assertEqual(["login:", "ä─x"], text(self.terminal)[:2])
        self.assertEqual({COLUMNS}, {len(line) for line in self.terminal.cells()})
        self.assertEqual(LINES, len(self.terminal.cells()))

    def test_colours(self) -> None:
        self.terminal.show(b"\x1b[31;1;4ma\x1b[0;31mb\x1b[7mc\x1b[0;38;5;196md\x1b[0m\x1b[1;1H")
        line = self.terminal.cells()[0]
        self.assertEqual((Cell("b", RED, BLACK), Cell("c", BLACK, RED), Cell("d", 0xFF0000, BLACK)), line[1:4])
        self.assertEqual(Cell("a", BLACK, 0xFF5555, True), line[0])  # under the cursor

    def test_a_hidden_cursor(self) -> None:
        self.assertEqual(GREY, self.terminal.cells()[0][0].ground)
        self.terminal.show(b"\x1b[?25l")
        self.assertEqual(BLACK, self.terminal.cells()[0][0].ground)

    def test_it_answers_what_the_guest_asks(self) -> None:
        self.assertEqual(b"", self.terminal.show(b"abc"))
        self.assertEqual(b"\x1b[1;4R", self.terminal.show(b"\x1b[6n"))

    def test_programs_may_want_the_arrows_other_form(self) -> None:
        for data, expected in ((b"", False), (b"\x1b[?1h", True), (b"\x1b[?1l", False)):
            self.terminal.show(data)
            self.assertEqual(expected, self.terminal.wants_application_keys)

    def test_it_goes_on_after_what_it_does_not_know(self) -> None:
        for hostile in (b"\x1b[?5;6n", b"\x1b[?1;2r", b"\x1b[999999999999999999999@", b"\x1b[?38;2m", b"\x1b[38;2m",
                        b"\x1b[38;5m", b"\x1b]0;title", b"\x1bc"):
            self.terminal.show(hostile)
        self.terminal.show(b"\x07\x1bcagain")
        self.assertEqual("again", text(self.terminal)[0])

    def test_accents_are_composed_and_do_not_pile_up_in_a_cell(self) -> None:
        self.terminal.show("e\u0301".encode())
        for _ in range(3):
            self.terminal.show("\u0301\u0323".encode() * 1000)
        self.assertEqual("é", text(self.terminal)[0])
        self.assertEqual({1}, {len(self.terminal._screen.buffer[0][column].data) for column in range(COLUMNS)})

    @settings(max_examples=levels.budget(gate=80, exhaustive=200), deadline=None)
    @given(st.lists(st.one_of(st.binary(max_size=12), st.sampled_from(PIECES)), max_size=20))
    def test_whatever_a_guest_prints_is_a_picture(self, pieces: list[bytes]) -> None:
        terminal = Terminal()
        for piece in pieces:
            terminal.show(piece)
        self.assertEqual({1}, {len(cell.letter) for line in terminal.cells() for cell in line})
