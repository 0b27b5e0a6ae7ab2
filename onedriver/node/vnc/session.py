# SPDX-License-Identifier: Apache-2.0
"""Serve one viewer in an unprivileged process: its greeting, then keys one way and the framebuffer the other."""

import contextlib
import logging
import os
import pwd
import re
import resource
import select
import socket
import struct
import time
from collections.abc import Callable

from onedriver.errors import DriverError
from onedriver.node.vnc import glyphs, rfb
from onedriver.node.vnc.framebuffer import HEIGHT, WIDTH, Framebuffer
from onedriver.node.vnc.keys import Keyboard
from onedriver.node.vnc.terminal import Terminal

LOG = logging.getLogger(__name__)

ADMITTED = b"\1"  # sent to the other processes: one holds the instance, one attaches to the console
USER, NOBODY = "nobody", 65534
GREETING_TIMEOUT, SEND_TIMEOUT = 10, 30  # s
PENALTY = 1  # s of delay after a wrong password
FRAME = 1 / 30  # s between two framebuffers
CHUNK = 4096  # bytes
POLITE = 10  # nice value: a guest may print endlessly
MEMORY = 256 << 20  # bytes of data: a guest may never end an escape sequence
VIEWER = re.compile(rb"RFB (\d{3})\.(\d{3})\n")


def main(client: socket.socket, guest: socket.socket, password: str | None, name: str,
         hold_console: Callable[[], None]) -> None:
    """Run the session's process.

    :param guest: connection to the process with the console
    :param hold_console: called before the client gets the console: afterwards no newer client replaces it
    """
    give_up_rights()
    try:
        greet(client, password, name, hold_console)
        guest.sendall(ADMITTED)
        Session(client, guest).run()
    except (DriverError, OSError) as error:
        LOG.warning("A viewer of the console of %s is gone: %s", name, error)


def give_up_rights() -> None:
    """Drop this process's rights, and limit its resources: it parses a viewer's messages and a guest's output."""
    os.nice(POLITE)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    if os.getuid() != 0:
        return
    try:
        user, group = pwd.getpwnam(USER)[2:4]
    except KeyError:
        user = group = NOBODY
    os.setgroups([])
    os.setresgid(group, group, group)
    os.setresuid(user, user, user)


def greet(client: socket.socket, password: str | None, name: str, hold_console: Callable[[], None]) -> None:
    """Admit or refuse a client.

    :param hold_console: called before the client is told that it is admitted
    :raises NotRfb: the client is not a viewer, or does not know the password
    :raises NoFont: there is no font
    """
    end = time.monotonic() + GREETING_TIMEOUT
    client.settimeout(GREETING_TIMEOUT)
    client.sendall(rfb.VERSION)
    version = VIEWER.fullmatch(exactly(client, len(rfb.VERSION), end))
    if not version or tuple(map(int, version.groups())) < (3, 8):
        raise rfb.NotRfb("it does not speak RFB 3.8")
    try:
        glyphs.font()
    except glyphs.NoFont as error:
        client.sendall(b"\0" + rfb.failure(str(error)))
        raise
    kind = rfb.NONE if password is None else rfb.PASSWORD
    client.sendall(bytes([1, kind]))
    if exactly(client, 1, end) != bytes([kind]):
        raise rfb.NotRfb("it wants a kind of security that was not offered")
    if password is not None:
        require_password(client, password, end)
    hold_console()
    client.sendall(struct.pack(">I", 0))
    exactly(client, 1, end)  # the shared flag is ignored: the latest client gets the console
    client.sendall(rfb.description(name, WIDTH, HEIGHT))
    client.settimeout(SEND_TIMEOUT)
    # Keepalive detects a proxy that ended without closing the connection.
    client.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def require_password(client: socket.socket, password: str, end: float) -> None:
    challenge = os.urandom(rfb.CHALLENGE)
    client.sendall(challenge)
    if not rfb.answers(challenge, exactly(client, rfb.CHALLENGE, end), password):
        time.sleep(PENALTY)
        client.sendall(struct.pack(">I", 1) + rfb.failure("the password is wrong"))
        raise rfb.NotRfb("its password is wrong")


def exactly(client: socket.socket, length: int, end: float) -> bytes:
    """Read exactly ``length`` bytes before the time ``end``."""
    data = b""
    while len(data) < length:
        client.settimeout(max(0.001, end - time.monotonic()))
        part = client.recv(length - len(data))
        if not part:
            raise rfb.NotRfb("it hung up during the greeting")
        data += part
    return data


class Session:
    """Serve one viewer after the greeting: draw the guest's output, and forward its input."""

    def __init__(self, client: socket.socket, guest: socket.socket) -> None:
        self._visitor = client
        self._guest = guest
        self._terminal = Terminal()
        self._keyboard = Keyboard()
        self._framebuffer = Framebuffer()
        self._form = rfb.USUAL
        self._received = b""
        self._wanted = self._changed = self._typed = False

    def run(self) -> None:
        """Serve until either end closes."""
        next_picture = 0.0
        while True:
            pause = max(0.0, next_picture - time.monotonic()) if self._wanted and self._changed else None
            ready, _, _ = select.select([self._visitor, self._guest], [], [], pause)
            if self._guest in ready and not self._show():
                return
            if self._visitor in ready and not self._listen():
                return
            if self._wanted and self._changed and time.monotonic() >= next_picture:
                next_picture = time.monotonic() + FRAME
                self._draw()

    def _show(self) -> bool:
        data = self._guest.recv(CHUNK)
        answers = self._terminal.show(data)
        # Output from before this connection may contain queries that earlier clients answered.
        if answers and self._typed:
            self._type(answers)
        self._changed = True
        return bool(data)

    def _listen(self) -> bool:
        data = self._visitor.recv(CHUNK)
        self._received += data
        while found := rfb.taken(self._received):
            message, length = found
            self._received = self._received[length:]
            self._take(message)
        return bool(data)

    def _take(self, message: rfb.Message) -> None:
        match message:
            case rfb.PixelFormat():
                self._form = message
                self._framebuffer.forget()
            case rfb.UpdateRequest(changes_only):
                self._wanted = True
                if not changes_only:
                    self._framebuffer.forget()
                    self._changed = True
            case rfb.Key(number, down):
                self._typed = True
                self._type(self._keyboard.typed(number, down, self._terminal.wants_application_keys))

    def _type(self, data: bytes) -> None:
        """Send keys to the guest. Keys that it does not accept are lost, so that it does not block its viewer."""
        if data:
            with contextlib.suppress(BlockingIOError):
                self._guest.send(data, socket.MSG_DONTWAIT)

    def _draw(self) -> None:
        """Send changes. Without changes, the viewer's request stays pending."""
        message = self._framebuffer.update(self._terminal.cells(), self._form)
        self._changed = False
        if message:
            self._wanted = False
            self._visitor.sendall(message)
