# SPDX-License-Identifier: Apache-2.0
import io
import re
import tempfile
from pathlib import Path

import subunit
import testtools
from testtools.content import text_content

from tools import supportmatrix
from tools.cloud import dashboard
from tools.cloud.layout import PLAIN, Ports, Shape
from tools.tempestrun import config, exclusions, features, verdict


def prepared(directory: Path) -> config.Prepared:
    return config.Prepared(directory=directory, password="secret", image_file=directory / "image", images=("i1", "i2"),
                           flavors=("f1", "f2"), external="net", shared_volumes="shared", features={"resize": "true"})


class ConfigTest(testtools.TestCase):
    def test_servers_share_the_network_that_has_a_router(self) -> None:
        found = config.tempest(prepared(Path("/run")), Ports(), PLAIN)
        self.assertEqual("false", found["auth"]["create_isolated_networks"])
        self.assertEqual("private", found["compute"]["fixed_network_name"])
        self.assertEqual("true", found["compute-feature-enabled"]["resize"])
        self.assertEqual("false", found["service_available"]["cinder"])

    def test_servers_move_where_there_are_two_hosts(self) -> None:
        one, two = (config.tempest(prepared(Path("/run")), Ports(), shape)["compute"]
                    for shape in (PLAIN, Shape(networks=True, second_host=True)))
        self.assertEqual("2", two["min_compute_nodes"])
        self.assertNotEqual(two["migration_source_host"], two["migration_dest_host"])
        self.assertNotIn("min_compute_nodes", one)

    def test_horizon_is_tested_where_the_cloud_has_it(self) -> None:
        found, without = (config.tempest(prepared(Path("/run")), Ports(), shape)
                          for shape in (Shape(networks=True, dashboard=True), PLAIN))
        self.assertEqual("true", found["service_available"]["horizon"])
        self.assertEqual(f"{dashboard.url(Ports())}/", found["dashboard"]["dashboard_url"])
        self.assertEqual("false", without["service_available"]["horizon"])
        self.assertNotIn("dashboard", without)

    def test_what_may_be_asked_is_what_the_driver_does(self) -> None:
        matrix = {"methods": {method: {"status": "refused"} for method in features.METHODS.values()},
                  "capabilities": {name: {"value": False} for name in features.CAPABILITIES.values()}}
        self.assertEqual("false", features.enabled(matrix)["rescue"])
        matrix["methods"]["rescue"]["status"] = "done"
        self.assertEqual("true", features.enabled(matrix)["rescue"])

    def test_the_support_matrix_knows_everything_that_is_asked_of_it(self) -> None:
        found = features.enabled(supportmatrix.load())
        self.assertEqual(["true"] * 3, [found[option] for option in (
            "pause", "live_migrate_back_and_forth", "block_migration_for_live_migration")])


class ExclusionsTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.path = Path(directory.name) / "excluded.yaml"

    def test_every_exclusion_of_the_project_has_a_reason(self) -> None:
        for exclusion in exclusions.load():
            self.assertGreater(len(exclusion.reason), 10, exclusion.regex)

    def test_one_without_a_reason_is_refused(self) -> None:
        self.path.write_text("- tests: test_it\n")
        self.assertIn("'reason'", str(self.assertRaises(ValueError, exclusions.load, self.path)))

    def test_one_that_is_no_expression_is_refused(self) -> None:
        self.path.write_text("- {tests: 'a(', reason: because}\n")
        self.assertIn("'a('", str(self.assertRaises(ValueError, exclusions.load, self.path)))

    def test_the_first_reason_counts(self) -> None:
        self.path.write_text("- {tests: '[.]test_a$', reason: first}\n- {tests: test, reason: second}\n")
        found = exclusions.excluded(["t.test_a", "t.test_b", "t.other"], exclusions.load(self.path))
        self.assertEqual({"t.test_a": "first", "t.test_b": "second"}, found)


    def test_stestr_finds_that_test_and_no_other(self) -> None:
        expression = exclusions.stestr_list(["tempest.T.test_a"]).rstrip("\n")
        self.assertTrue(re.search(expression, "tempest.T.test_a[id-1,smoke]"))
        self.assertTrue(re.search(expression, "tempest.T.test_a"))
        self.assertFalse(re.search(expression, "tempest.T.test_ab[id-1]"))

    def test_one_may_be_run_apart(self) -> None:
        self.path.write_text("- {tests: a, reason: first, apart: true}\n- {tests: b, reason: second}\n")
        self.assertEqual([True, False], [entry.apart for entry in exclusions.load(self.path)])


class VerdictTest(testtools.TestCase):
    def read(self, *statuses: str) -> verdict.Verdict:
        stream = io.BytesIO()
        writer = subunit.StreamResultToBytes(stream)
        result = testtools.ExtendedToStreamDecorator(writer)
        result.startTestRun()
        for number, status in enumerate(statuses):
            test = testtools.PlaceHolder(f"tempest.T.test_{number}[id-1,smoke]")
            result.startTest(test)
            match status:
                case "fail":
                    result.addFailure(test, details={"traceback": text_content("Traceback\nOh: no")})
                case "skip":
                    result.addSkip(test, reason="no such thing")
                case _:
                    result.addSuccess(test)
            result.stopTest(test)
        result.stopTestRun()
        with tempfile.NamedTemporaryFile() as file:
            file.write(stream.getvalue())
            file.flush()
            return verdict.read(Path(file.name), {"tempest.T.test_x": "a reason"})

    def test_everything_is_counted_once(self) -> None:
        found = self.read("pass", "fail", "skip", "pass")
        self.assertEqual("2 passed, 1 failed, 1 skipped, 1 excluded", found.line())
        self.assertEqual({"tempest.T.test_1": "Oh: no"}, found.failed)
        self.assertEqual({"tempest.T.test_2": "no such thing"}, found.skipped)
        self.assertFalse(found.ok)

    def test_nothing_that_ran_is_no_success(self) -> None:
        self.assertFalse(self.read("skip").ok)
        self.assertTrue(self.read("pass", "skip").ok)

    def test_it_is_told_as_json_too(self) -> None:
        self.assertEqual({"passed": 1, "failed": 0, "skipped": 0, "excluded": 1},
                         self.read("pass").to_dict()["counts"])
