# SPDX-License-Identifier: Apache-2.0
import base64

import testtools
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from onedriver import monitor
from onedriver.errors import BadInput
from onedriver.monitor import Message, Type
from onedriver.monitorconfig import monitor_config
from tests.unit.onedriver import frontend

CONFIG = ("<MONITOR_CONFIGURATION><DB><CONNECTIONS>15</CONNECTIONS></DB><HOST_ID><![CDATA[3]]></HOST_ID><NETWORK>"
          "<ADDRESS>0.0.0.0</ADDRESS><MONITOR_ADDRESS>auto</MONITOR_ADDRESS><PORT>4124</PORT><PRIKEY/><PUBKEY></PUBKEY>"
          "<THREADS>8</THREADS></NETWORK><PROBES_PERIOD><BEACON_HOST>30</BEACON_HOST><MONITOR_HOST>120</MONITOR_HOST>"
          "<MONITOR_VM>30</MONITOR_VM><STATE_VM>5</STATE_VM><SYSTEM_HOST>600</SYSTEM_HOST></PROBES_PERIOD>"
          "</MONITOR_CONFIGURATION>")
CLIENT = "192.0.2.7 51234 22"


class MonitorConfigTest(testtools.TestCase):
    def test_what_onemonitord_tells(self) -> None:
        config = monitor_config(CONFIG.encode(), CLIENT)
        self.assertEqual(("192.0.2.7", 4124, 3), (config.address, config.port, config.host))
        self.assertEqual({"BEACON_HOST": 30, "MONITOR_HOST": 120, "MONITOR_VM": 30, "STATE_VM": 5, "SYSTEM_HOST": 600,
                          "EXEC_VM": 5, "SNAPSHOT_VM": 60}, dict(config.periods))
        self.assertEqual(config, monitor_config(base64.b64encode(CONFIG.encode()), CLIENT))

    def test_an_address_that_is_configured(self) -> None:
        self.assertEqual("one.example", monitor_config(CONFIG.replace("auto", "one.example").encode(), "").address)

    def test_a_round_is_never_without_a_pause(self) -> None:
        config = monitor_config(CONFIG.replace("<STATE_VM>5", "<STATE_VM>0").encode(), CLIENT)
        self.assertEqual(1, config.periods[Type.STATE_VM])

    def test_what_is_incomplete_is_refused(self) -> None:
        for old, new, words in (("4124", "", "NETWORK/PORT"), ("4124", "99999", "not a port"),
                                ("[3]", "[x]", "HOST_ID"),
                                ("<STATE_VM>5", "<STATE_VM>often", "PROBES_PERIOD/STATE_VM"),
                                ("</MONITOR_CONFIGURATION>", "", "not a complete XML")):
            error = self.assertRaises(BadInput, monitor_config, CONFIG.replace(old, new).encode(), CLIENT)
            self.assertIn(words, str(error))
        self.assertIn("SSH_CLIENT", str(self.assertRaises(BadInput, monitor_config, CONFIG.encode(), "")))

    def test_a_key_that_is_none_is_refused(self) -> None:
        for key in ("/etc/one/key.pub", "-----BEGIN RSA PUBLIC KEY-----", "-----BEGIN PUBLIC KEY-----AAAA"
                    "-----END PUBLIC KEY-----", "-----BEGIN PUBLIC KEY-----A-----END RSA PUBLIC KEY-----"):
            self.assertRaises(BadInput, monitor_config, CONFIG.replace("<PUBKEY>", f"<PUBKEY>{key}").encode(), CLIENT)

    def test_what_only_the_front_end_can_read(self) -> None:
        private = rsa.generate_private_key(65537, 2048)
        for kind in (PublicFormat.PKCS1, PublicFormat.SubjectPublicKeyInfo):
            pem = private.public_key().public_bytes(Encoding.PEM, kind).decode()
            for key in (pem, pem.replace("\n", " ")):
                config = monitor_config(CONFIG.replace("<PUBKEY>", f"<PUBKEY>{key}").encode(), CLIENT)
                for text in ("", "x", "y" * 245, "ü" * 1000):
                    data = monitor.wire(Message(Type.STATE_VM, True, 3, 5, text), config.encrypt)
                    self.assertEqual(text, frontend.read(data, frontend.decryption(private)).text)
