# SPDX-License-Identifier: Apache-2.0
import base64
import email
import gzip

import testtools
import yaml

from containerhost import errors
from nova_lxd_ext.server import cloudinit
from tests.unit.nova import records

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIKq tenant@home: \"quoted\" #not a comment\n"


def encoded(content: bytes) -> str:
    return base64.b64encode(content).decode()


class MetaDataTest(testtools.TestCase):
    def test_follows_what_the_daemon_writes_and_overrules_it(self) -> None:
        server = records.instance(key_name="mine", key_data=KEY)
        # LXD documentation, devlxd: how /1.0/meta-data begins.
        daemon = "#cloud-config\ninstance-id: 00000000-1111\nlocal-hostname: instance-0000002a\n"
        self.assertEqual(
            {"instance-id": records.UUID, "local-hostname": "train-1", "public-keys": [KEY.strip()]},
            yaml.safe_load(daemon + cloudinit.documents(server).meta_data))

    def test_a_tenants_text_stays_a_value(self) -> None:
        hostile = "x\ninstance-id: stolen"
        document = yaml.safe_load(cloudinit.documents(records.instance(hostname=hostile, key_data=hostile)).meta_data)
        self.assertEqual({"instance-id": records.UUID, "local-hostname": hostile, "public-keys": [hostile]}, document)

    def test_no_key_no_entry(self) -> None:
        self.assertNotIn("public-keys", cloudinit.documents(records.instance()).meta_data)


class UserDataTest(testtools.TestCase):
    def test_text_is_passed_on_as_it_is(self) -> None:
        text = "#!/bin/sh\n# \N{SNOWMAN}\ntrue\n"
        self.assertEqual(text, cloudinit.documents(records.instance(user_data=encoded(text.encode()))).user_data)

    def test_binary_survives_in_a_mime_part(self) -> None:
        table = [(gzip.compress(b"#!/bin/sh\n"), "application/gzip"), (b"\xff\xfe\x00", "application/octet-stream")]
        for content, kind in table:
            with self.subTest(kind):
                text = cloudinit.documents(records.instance(user_data=encoded(content))).user_data
                message = email.message_from_string(text)
                self.assertEqual((kind, content), (message.get_content_type(), message.get_payload(decode=True)))

    def test_line_breaks_in_base64_are_none_in_the_user_data(self) -> None:
        text = "#!/bin/sh\n" * 20
        server = records.instance(user_data=base64.encodebytes(text.encode()).decode())
        self.assertEqual(text, cloudinit.documents(server).user_data)

    def test_none_stays_none(self) -> None:
        self.assertIsNone(cloudinit.documents(records.instance()).user_data)

    def test_what_is_not_base64_is_refused(self) -> None:
        self.assertRaises(errors.SpecError, cloudinit.documents, records.instance(user_data="a"))
