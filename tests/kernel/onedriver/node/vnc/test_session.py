# SPDX-License-Identifier: Apache-2.0
import contextlib
import os
import resource

from onedriver.node.vnc import session
from tests.rfbclient import Refused, Viewer
from tests.unit.onedriver.node.vnc.test_session import TIMEOUT, SessionCase


class SessionTest(SessionCase):
    def test_passwords(self) -> None:
        here, guest = self.begun("secret")
        Viewer(here, "secret")
        self.assertEqual(session.ADMITTED, guest.recv(1))
        here, guest = self.begun("secret")
        self.assertEqual("the password is wrong", str(self.assertRaises(Refused, Viewer, here, "secre")))
        self.thread.join(TIMEOUT)
        self.assertEqual(b"", guest.recv(1))

    def test_a_client_has_its_place_when_it_hears_that_it_is_admitted(self) -> None:
        """Later would be too late: connections without a password would take it from the one that has just said it."""
        here, _ = self.begun("secret")
        Viewer(here, "secret")
        self.assertEqual(["secret"], self.places)
        here, _ = self.begun("secret")
        self.assertRaises(Refused, Viewer, here, "secre")
        self.assertEqual([], self.places)

    def test_what_a_guest_prints_is_kept_within_a_memory_limit(self) -> None:
        """In a process of its own, because the limit stays. Without it, an escape sequence that never ends takes all
        of the host's memory."""
        process = os.fork()
        if process == 0:
            status = 1
            try:
                session.give_up_rights()
                with contextlib.suppress(MemoryError):
                    bytearray(session.MEMORY)
                    status = 2
                if resource.getrlimit(resource.RLIMIT_DATA) == (session.MEMORY, session.MEMORY):
                    status -= 1
            finally:
                os._exit(status)
        self.assertEqual(0, os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]))
