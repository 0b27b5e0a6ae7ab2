# SPDX-License-Identifier: Apache-2.0
import testtools
from nova import exception, objects

from containerhost.engines.contract import Executed, Status
from nova_lxd_ext.access import password
from nova_lxd_ext.instance import labels
from tests.unit.nova import records
from tests.unit.nova.guestfakes import GuestEngine

SECRET = "correct: horse"
WELL = Executed(0, b"")


class PasswordTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.engine = GuestEngine()
        self.server = records.instance()
        self.engine.add(self.server.name, labels.of(self.server), Status.RUNNING)

    def set(self, text: str = SECRET, done: Executed = WELL, user: str | None = None) -> None:
        if user is not None:
            self.server.system_metadata["image_os_admin_user"] = user
        self.engine.done = done
        password.set_admin(self.engine, self.server.name, objects.ImageMeta.from_instance(self.server), text)

    def refusal(self, *arguments: object, **more: object) -> str:
        return str(self.assertRaises(exception.SetAdminPasswdNotSupported, self.set, *arguments, **more))

    def test_it_goes_to_standard_input_only(self) -> None:
        self.set()
        self.assertEqual([(("chpasswd",), b"root:correct: horse\n")], self.engine.executed)

    def test_the_user_is_the_images(self) -> None:
        self.set(user="ubuntu")
        self.assertEqual(b"ubuntu:correct: horse\n", self.engine.executed[0][1])

    def test_what_would_reach_another_user_is_refused(self) -> None:
        for text in ("", "a\nroot:b", "a\0b", "a\r"):
            with self.subTest(text):
                self.assertIn("control character", self.refusal(text))
        for user in ("", "a:b", "a\nb", "Root", "-x", "x" * 33):
            with self.subTest(user):
                self.assertIn("not a user name", self.refusal(user=user))
        self.assertEqual([], self.engine.executed)

    def test_what_the_guest_lacks_is_told_without_the_password(self) -> None:
        self.assertIn("the guest has no chpasswd", self.refusal(done=Executed(127, b"")))
        told = self.refusal(done=Executed(1, b"chpasswd:\x1b[2J cannot give root " + SECRET.encode()))
        self.assertIn("status 1", told)
        self.assertNotIn(SECRET, told)
        self.assertNotIn("\x1b", told)
