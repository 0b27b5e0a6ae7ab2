"""What tools/oned makes of OpenNebula's configuration."""

import testtools

from tools.oned import front_end
from tools.oned.scenarios import run

MONITORD = """#MANAGER_TIMER  = 15
MONITORING_INTERVAL_HOST = 180

NETWORK = [
    ADDRESS         = "0.0.0.0",
    MONITOR_ADDRESS = "auto",
    PORT    = 4124 ]

PROBES_PERIOD = [
    BEACON_HOST    = 30,
    SYSTEM_HOST    = 600,
    MONITOR_VM     = 30 ]
"""


class ConfigurationTest(testtools.TestCase):
    def test_monitoring_reaches_the_nodes_and_is_frequent(self) -> None:
        text = front_end.adjusted(MONITORD, "10.99.0.1")
        self.assertEqual(2, text.count('ADDRESS = "10.99.0.1",'))
        for words in ("MANAGER_TIMER = 5\n", "MONITORING_INTERVAL_HOST = 30\n", "SYSTEM_HOST = 60,",
                      "MONITOR_VM = 15 ]", "BEACON_HOST    = 30,"):
            self.assertIn(words, text)


class RunTest(testtools.TestCase):
    def test_a_scenario_that_fails_does_not_end_the_others(self) -> None:
        def fails() -> None:
            raise AssertionError("not as it should be")

        said: list[str] = []
        results = run({"one": fails, "other": lambda: None}, said.append)
        self.assertEqual([("one", "not as it should be"), ("other", "")],
                         [(result.name, result.problem) for result in results])
        self.assertIn("not as it should be", said[0])
