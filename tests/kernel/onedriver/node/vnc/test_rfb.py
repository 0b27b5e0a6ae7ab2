# SPDX-License-Identifier: Apache-2.0

import testtools

from onedriver.node.vnc import rfb
from tests import rfbclient


class RfbTest(testtools.TestCase):
    def test_who_knows_the_password(self) -> None:
        challenge = bytes(range(16))
        for password in ("secret", "more than eight letters", "a"):
            self.assertTrue(rfb.answers(challenge, rfbclient.des(challenge, password), password))
            self.assertFalse(rfb.answers(challenge, rfbclient.des(challenge, "!" + password), password))
