# SPDX-License-Identifier: Apache-2.0
from tests.functional.nova import base  # isort: skip

from typing import Any

from nova.tests.functional.api import client as api_client

from tests import levels

SECRET = "correct:horse$battery 'staple"


class PasswordTest(base.LxdServers):
    def change(self, server: dict[str, Any], password: str) -> None:
        self.api.post_server_action(server["id"], {"changePassword": {"adminPass": password}})

    def refusal(self, server: dict[str, Any], password: str) -> str:
        error = self.assertRaises(api_client.OpenStackApiException, self.change, server, password)
        self.assertEqual(409, error.response.status_code)
        return error.response.json()["conflictingRequest"]["message"]

    def test_the_administrators_password(self) -> None:
        server = self.server()
        self.change(server, SECRET)
        shadow = self.inside(server, "grep", "^root:", "/etc/shadow").output.split(":")[1]
        salt = shadow.split("$")[2]
        self.assertEqual(shadow, self.inside(server, "mkpasswd", "-m", "sha512", SECRET, salt).output.strip())
        self.assertNotIn(SECRET, self.stdlog.logger.output)
        self.assertIn("control character", self.refusal(server, "one\nother:two"))
        self.inside(server, "rm", "/usr/sbin/chpasswd")
        self.assertIn("the guest has no chpasswd", self.refusal(server, SECRET))
        self.assertEqual(shadow, self.inside(server, "grep", "^root:", "/etc/shadow").output.split(":")[1])
        self.assertEqual("ACTIVE", self.api.get_server(server["id"])["status"])

    @levels.exhaustive("units show it; the administrator's remains")
    def test_the_user_is_the_images(self) -> None:
        server = self.server(image=self.image(os_admin_user="admin"))
        self.assertIn("no user admin", self.refusal(server, SECRET))
        self.inside(server, "sh", "-c", "echo 'admin:*:20000:0:99999:7:::' >> /etc/shadow")
        self.change(server, SECRET)
        self.assertIn("$6$", self.inside(server, "grep", "^admin:", "/etc/shadow").output)
        self.assertIn("root:*:", self.inside(server, "grep", "^root:", "/etc/shadow").output)
