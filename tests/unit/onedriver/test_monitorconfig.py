import base64

import testtools

from onedriver.errors import BadInput, NotSupported
from onedriver.monitor import Type
from onedriver.monitorconfig import monitor_config

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
                          "EXEC_VM": 60, "SNAPSHOT_VM": 60}, dict(config.periods))
        self.assertEqual(config, monitor_config(base64.b64encode(CONFIG.encode()), CLIENT))

    def test_an_address_that_is_configured(self) -> None:
        self.assertEqual("one.example", monitor_config(CONFIG.replace("auto", "one.example").encode(), "").address)

    def test_a_round_is_never_without_a_pause(self) -> None:
        config = monitor_config(CONFIG.replace("<STATE_VM>5", "<STATE_VM>0").encode(), CLIENT)
        self.assertEqual(1, config.periods[Type.STATE_VM])

    def test_what_is_incomplete_is_refused(self) -> None:
        for old, new, words in (("4124", "", "NETWORK/PORT"), ("4124", "99999", "no port"), ("[3]", "[x]", "HOST_ID"),
                                ("<STATE_VM>5", "<STATE_VM>often", "PROBES_PERIOD/STATE_VM"),
                                ("</MONITOR_CONFIGURATION>", "", "no complete XML")):
            error = self.assertRaises(BadInput, monitor_config, CONFIG.replace(old, new).encode(), CLIENT)
            self.assertIn(words, str(error))
        self.assertIn("SSH_CLIENT", str(self.assertRaises(BadInput, monitor_config, CONFIG.encode(), "")))

    def test_messages_are_not_encrypted(self) -> None:
        self.assertRaises(NotSupported, monitor_config,
                          CONFIG.replace("<PUBKEY>", "<PUBKEY>-----BEGIN RSA PUBLIC KEY-----").encode(), CLIENT)
