# SPDX-License-Identifier: Apache-2.0
"""Test how results of the AI-cloud suite are read, and what the provider prints when something does not hold."""

import contextlib
import importlib
import inspect
import io
import json
import os
import runpy
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from unittest import mock

import fixtures
import openstack
import testtools
import yaml

from tools.aicloudrun import results, story
from tools.cloud.layout import CHECKOUT

SUITE = {"tests": {"validations": {
    "one": {"step": "check_api", "checks": {
        "GoodCheck": {"test_id": "A-1", "labels": ["min_req"], "compose": [{"OsCheck": {"expected_os": "ubuntu"}}]},
        "BadCheck": {"test_id": "A-2", "labels": []}}},
    "two": {"checks": {
        "SkippedCheck": {"test_id": "A-3", "labels": []}, "LostCheck": {"test_id": "A-4", "labels": ["min_req"]},
        "BareMetalCheck": {"test_id": "N/A", "labels": ["min_req"], "expected_os": "ubuntu"}}}}}}
REPORT = """<testsuites><testsuite name="vm/test">
<testcase name="GoodCheck"/><testcase name="GoodCheck::os_type"><failure message="no matter"/></testcase>
<testcase name="BadCheck"><failure message="Failed: a part">trace</failure>
<failure message="AssertionError: Validation failed: it failed&#10;Output:">trace</failure></testcase>
<testcase name="SkippedCheck"><skipped type="step_not_configured" message="no step"/></testcase>
<testcase name="BareMetalCheck"><skipped message="excluded"/></testcase>
</testsuite></testsuites>"""
EXCLUDED = {"BareMetalCheck": ("not applicable", "a container")}
SCRIPTS = story.PROVIDER / "scripts"


def script(case: testtools.TestCase, name: str) -> ModuleType:
    """Import a script and the modules that it shares with others, for this test alone."""
    modules = mock.patch.dict(sys.modules)
    modules.start()
    case.addCleanup(modules.stop)
    for path in SCRIPTS.glob("*.py"):
        sys.modules.pop(path.stem, None)
    with mock.patch.object(sys, "path", [str(SCRIPTS), *sys.path]):
        return importlib.import_module(name)


class ResultsTest(testtools.TestCase):
    def test_results_with_reasons(self) -> None:
        found = {each.check: (each.result, each.reason)
                 for each in results.judge("vm", SUITE, REPORT, EXCLUDED)}
        self.assertEqual({
            "GoodCheck": ("passed", ""), "BadCheck": ("failed", "it failed"), **EXCLUDED,
            "SkippedCheck": ("failed", "skipped: no step"),
            "LostCheck": ("failed", "the report does not have it")}, found)

    def test_check_that_passed_by_one_of_its_parts(self) -> None:
        """The suite reports the failure of a part as one of the whole, too."""
        report = """<testsuite><testcase name="ACheck"><failure message="Failed: no journal"/>{own}</testcase>
            <testcase name="ACheck::journal"><failure message="Subtest journal failed"/></testcase>
            <testcase name="ACheck::dmesg"/></testsuite>"""
        own = '<failure message="AssertionError: Validation failed: none"/>'
        self.assertEqual([("passed", ""), ("failed", "none")],
                         [results.reported(report.format(own=each))["ACheck"] for each in ("", own)])

    def test_counts_have_minimum_requirements_in_parentheses(self) -> None:
        self.assertEqual("3 failed (1), 1 not applicable (1), 1 passed (1)",
                         results.line(results.judge("vm", SUITE, REPORT, EXCLUDED)))

    def test_overlay_excludes_by_name_and_replaces_the_expected_system_everywhere(self) -> None:
        found = results.overlay(SUITE, EXCLUDED, "debian")["tests"]
        self.assertEqual({"tests": ["BareMetalCheck"]}, found["exclude"])
        checks = results.declared({"tests": found})
        self.assertEqual([{"OsCheck": {"expected_os": "debian"}}], checks["GoodCheck"]["compose"])
        self.assertEqual("debian", checks["BareMetalCheck"]["expected_os"])
        self.assertNotIn("expected_os", checks["BadCheck"])


class ProviderTest(testtools.TestCase):
    def test_each_step_is_in_its_script(self) -> None:
        configure = runpy.run_path(str(story.PROVIDER / "configure.py"))["configuration"]
        for suite in story.SUITES:
            ((platform, commands),) = configure(suite)["commands"].items()
            self.assertEqual((suite.replace("-", "_"), ["setup", "test", "teardown"]), (platform, commands["phases"]))
            for step in commands["steps"]:
                _, path, name = step["command"].split()
                taken = inspect.signature(getattr(script(self, Path(path).stem), name)).parameters
                self.assertEqual([f"--{each}" for each in list(taken)[1:]], step["args"][::2], step)

    def test_arguments_are_fields_of_earlier_steps(self) -> None:
        steps = runpy.run_path(str(story.PROVIDER / "configure.py"))["configuration"]("iam")["commands"]["iam"]["steps"]
        self.assertEqual({"create_user", "test_credentials", "teardown"}, {step["name"] for step in steps})
        self.assertEqual(["--user", "{{steps.create_user.username}}"], steps[-1]["args"])

    def test_each_left_out_check_has_one_reason_which_the_manual_tells(self) -> None:
        entries = yaml.safe_load((story.PROVIDER / "reasons.yaml").read_text())
        checks = [check for entry in entries for check in entry["checks"]]
        self.assertEqual(sorted(set(checks)), sorted(checks))
        page = (CHECKOUT / "doc/source/aicloud.md").read_text()
        self.assertEqual([], [check for check in checks if f"`{check}`" not in page])
        self.assertEqual([], [entry["reason"] for entry in entries if entry["reason"] not in page])


class StoryTest(testtools.TestCase):
    def test_a_suite_that_fails_keeps_no_other_from_its_results(self) -> None:
        cloud, report = mock.MagicMock(), mock.MagicMock(setting={})
        told = story.AicloudStory(cloud, (), report, Path("suite"), ["vm", "network", "iam"])
        errors = [story.SuiteFailed("no report"), subprocess.TimeoutExpired("isvctl", 3600), None]
        with (mock.patch.object(told, "offer"), mock.patch.object(told, "table"),
              mock.patch.object(story.breakfix, "repair"), mock.patch.object(story.http.server, "ThreadingHTTPServer"),
              mock.patch.object(told, "run", side_effect=errors) as run):
            told.tell()
        self.assertEqual(["vm", "network", "iam"], [call.args[0] for call in run.mock_calls])
        self.assertEqual([("vm", False), ("network", False)],
                         [(call.args[0], call.args[3]) for call in report.check.mock_calls])


class StepTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.common = script(self, "common")

    def printed(self, step: object, *arguments: str) -> tuple[int, dict[str, object]]:
        """Return the exit status and the JSON object of a step."""
        out = io.StringIO()
        with mock.patch.object(sys, "argv", ["", "step", *arguments]), contextlib.redirect_stdout(out):
            status = self.assertRaises(SystemExit, self.common.run, {"step": step}).code
        return int(str(status)), json.loads(out.getvalue())

    def test_what_does_not_hold_is_recorded_and_the_step_goes_on(self) -> None:
        def step(output, probes):
            with output.test("first"):
                self.common.need(False, "closed")
            with output.test("second") as entry:
                entry["probes"] = probes

        self.assertEqual((1, {
            "success": False, "platform": "openstack", "tests": {
                "first": {"passed": False, "error": "Unmet: closed"}, "second": {"passed": True, "probes": "3"}}}),
            self.printed(step, "--probes", "3"))

    def test_an_error_ends_the_step_after_its_cleanup(self) -> None:
        undone = []

        def step(output):
            output.undo.callback(undone.append, "port")
            with output.test("first"):
                raise ValueError("bad")

        status, found = self.printed(step)
        self.assertEqual((1, ["port"], "ValueError: bad"), (status, undone, found["error"]))
        self.assertEqual({"first": {"passed": False, "error": "ValueError: bad"}}, found["tests"])

    def test_only_a_refusal_is_a_refusal(self) -> None:
        def fails(status: int) -> object:
            raise openstack.exceptions.HttpException(http_status=status)

        self.assertEqual(403, self.common.refusal(lambda: fails(403)))
        self.assertRaises(openstack.exceptions.HttpException, self.common.refusal, lambda: fails(500))
        self.assertRaises(self.common.Unmet, self.common.refusal, lambda: "the console's output")

    def test_no_connection_is_not_a_closed_port(self) -> None:
        server = {"public_ip": "192.0.2.1"}
        for status, holds in ((0, True), (124, False)):
            with mock.patch.object(self.common, "ssh", return_value=SimpleNamespace(returncode=status)):
                self.assertIs(holds, self.common.succeeds(server, "true"))
        with mock.patch.object(self.common, "ssh", return_value=SimpleNamespace(returncode=255, stderr="")):
            self.assertRaises(RuntimeError, self.common.succeeds, server, "true")

    def test_a_key_that_still_works_is_told(self) -> None:
        control_plane = script(self, "control_plane")
        output = control_plane.Output()
        with mock.patch.object(control_plane, "with_key"):
            control_plane.verify_key_rejected(output, "key", "secret")
        self.assertEqual((False, False), (output["success"], output["rejected"]))

    def test_a_tenant_that_the_list_lacks_is_told(self) -> None:
        control_plane = script(self, "control_plane")
        output = control_plane.Output()
        cloud = mock.Mock()
        cloud.identity.projects.return_value = [SimpleNamespace(name="demo", id="1", description="")]
        with mock.patch.object(control_plane, "admin", return_value=cloud):
            control_plane.list_tenants(output, "isv-1")
        self.assertEqual((False, 1), (output["found_target"], output["count"]))


class NetworkTest(testtools.TestCase):
    def test_a_port_has_its_own_groups_again_when_a_probe_fails(self) -> None:
        traffic = script(self, "traffic")
        port, cloud = SimpleNamespace(security_group_ids=["own"]), mock.Mock()
        cloud.network.create_security_group.return_value.id = "probe"
        cloud.network.update_port.side_effect = lambda port, security_groups: setattr(
            port, "security_group_ids", security_groups)  # as the SDK does it, in place

        def probe() -> None:
            with traffic.group_on(cloud, port, **traffic.tcp(22)):
                self.assertEqual(["own", "probe"], port.security_group_ids)
                raise traffic.common.Unmet("closed")

        self.assertRaises(traffic.common.Unmet, probe)
        self.assertEqual(["own"], port.security_group_ids)
        cloud.network.delete_security_group.assert_called_once()

    def test_a_port_that_does_not_listen_proves_nothing(self) -> None:
        traffic = script(self, "traffic")
        target, source = {"private_ip": "10.0.0.2"}, {"private_ip": "10.0.0.1"}
        for listens, answers, error in ((False, False, "listens"), (True, True, "answers"), (True, False, "")):
            with mock.patch.object(traffic, "reaches", lambda server, *_where, told=(listens, answers): told[
                    server is source]):
                if error:
                    self.assertIn(error, str(self.assertRaises(
                        traffic.common.Unmet, traffic.refuses, target, 22, source)))
                else:
                    traffic.refuses(target, 22, source)

    def test_free_addresses_are_those_of_the_pools_without_ports(self) -> None:
        vpcs = script(self, "vpcs")
        network = SimpleNamespace(id="n", name="isv-1", availability_zones=["nova"], dns_domain=None)
        subnet = SimpleNamespace(id="s", name="isv-1-1", cidr="10.0.0.0/24", subnet_pool_id="p", dns_nameservers=[],
                                 allocation_pools=[{"start": "10.0.0.2", "end": "10.0.0.254"}])
        dhcp = SimpleNamespace(device_owner="network:dhcp", fixed_ips=[{"subnet_id": "s", "ip_address": "10.0.0.2"}])
        router = SimpleNamespace(device_owner="network:router_interface",
                                 fixed_ips=[{"subnet_id": "s", "ip_address": "10.0.0.1"}])
        cloud = mock.Mock()
        cloud.network.configure_mock(**{
            "find_network.return_value": network, "subnets.return_value": [subnet],
            "ports.return_value": [dhcp, router],
            "get_subnet_pool.return_value": SimpleNamespace(prefixes=["10.0.0.0/16"])})
        found = vpcs.described(cloud, "isv-1")
        self.assertEqual(("10.0.0.0/16", 252, ["10.0.0.2"]), (
            found["cidr"], found["subnets"][0]["available_ips"], found["dhcp_options"]["domain_name_servers"]))


class ServerTest(testtools.TestCase):
    NODES = """directory:/dev
character special file:/dev/null
block special file:/dev/loop0
symbolic link:/dev/fd
character special file:/dev/dri/card1
socket:/dev/log
"""

    def setUp(self) -> None:
        super().setUp()
        self.server = script(self, "server")

    def test_device_nodes_are_what_stat_says(self) -> None:
        self.assertEqual(["dri/card1", "loop0", "null"], self.server.device_nodes(self.NODES))

    def test_an_unneeded_node_and_a_list_without_null_do_not_pass(self) -> None:
        self.assertTrue(self.hardened(self.NODES, "dri/,loop"))
        self.assertFalse(self.hardened(self.NODES, "dri/"))
        error = self.assertRaises(self.server.common.Unmet, self.hardened, "", "dri/,loop")
        self.assertIn("null", str(error))

    def hardened(self, nodes: str, own: str) -> bool:
        server = self.server
        output = server.Output()
        with (mock.patch.object(server, "tenant"), mock.patch.dict("os.environ", AICLOUD_DEVICE_NODES=own),
              mock.patch.object(server, "describe", return_value={"instance_id": "1"}),
              mock.patch.object(server.common, "inside", return_value=nodes)):
            server.virtual_device_hardening(output)
        return bool(output.holds)


class OperatorTest(testtools.TestCase):
    """Steps that ask the operator's APIs, and files of the site."""

    def setUp(self) -> None:
        super().setUp()
        self.fleet, self.cloud = script(self, "fleet"), mock.MagicMock()
        self.fleet.admin = lambda: self.cloud

    def hosts(self, *devices: dict[str, object], state: str = "up") -> list[object]:
        blank = {"kind": "gpu", "health": [], "taint": None, "blocked": None, "host_use": [], "vendor_id": "10de",
                 "product_id": "20b0"}
        self.cloud.compute.configure_mock(**{
            "aggregates.return_value": [SimpleNamespace(metadata={"rack": "r1"}, hosts=["node1"])],
            "hypervisors.return_value": [SimpleNamespace(id="h", service_details={"host": "node1"}, host_ip="192.0.2.1",
                                                         state=state)],
            "servers.return_value": [SimpleNamespace(id="s", compute_host="node1", status="ACTIVE"),
                                     SimpleNamespace(id="e", compute_host=None, status="ERROR")]})
        listed = json.dumps([{**blank, "id": str(number), **device} for number, device in enumerate(devices)])
        with mock.patch.object(self.fleet, "on_host", return_value=listed):
            return list(self.fleet.hosts())

    def test_alerts_are_faults_taints_and_blocks_of_offered_devices_and_a_service_that_is_down(self) -> None:
        (host,) = self.hosts({"health": ["fallen"]}, {"taint": "fan"}, {"blocked": "no reset"},
                             {"host_use": ["it is up"], "health": ["the host's"]}, {}, state="down")
        self.assertEqual(["fallen", "fan", "no reset", "it is down"], [alert["message"] for alert in host.alerts])
        self.assertEqual(("r1", ["s"], 4), (host.rack, [server.id for server in host.servers], len(host.gpus)))

    def test_metrics_follow_placement(self) -> None:
        gpus = [{"CUSTOM_GPU": {"total": 1, "reserved": reserved}} for reserved in (0, 1)]
        answers = {"a/inventories": {"inventories": gpus[0]}, "a/allocations": {"allocations": {"s": {}}},
                   "b/inventories": {"inventories": gpus[1]}, "b/allocations": {"allocations": {}},  # c has gone
                   "d/inventories": {"inventories": {"CUSTOM_MIG_1G_10GB": {"total": 7, "reserved": 0}}}}
        names = {"a": "node1_0000:3B:00.0", "b": "node1_reserved_0000:AF:00.0", "c": "node1_0000:AF:00.0",
                 "d": "node1_mig_0000:AF:00.0", "e": "node1"}
        self.cloud.placement.configure_mock(**{
            "resource_providers.return_value": [SimpleNamespace(id=each, name=name) for each, name in names.items()],
            "get.side_effect": lambda path: mock.Mock(**{
                "json.return_value": answers.get(path.removeprefix("/resource_providers/"), {})})})
        output = self.fleet.Output()
        found = self.hosts({"id": "0000:3b:00.0"}, {"id": "0000:af:00.0", "health": ["fallen"]})
        with mock.patch.object(self.fleet, "hosts", return_value=found):
            self.fleet.query_governance_metrics(output)
        self.assertEqual({"delivered": (1, 2), "healthy": (0, 1), "reserved": (1, 1), "active": (1, 1)},
                         {name: (each["nodes"], each["gpus"]) for name, each in output["metrics"].items()})

    def test_a_line_for_a_host_is_one_word_of_the_sites_command(self) -> None:
        common = script(self, "common")
        done = SimpleNamespace(returncode=0, stdout="done")
        with (mock.patch.dict("os.environ", AICLOUD_HOST="ssh 'a b@{host}'"),
              mock.patch.object(common.subprocess, "run", return_value=done) as run):
            self.assertEqual("done", common.on_host("node1", "containerhost taint 'x y'"))
        self.assertEqual(("ssh", "a b@node1", "containerhost taint 'x y'"), run.call_args.args[0])

    def test_what_repairs_reported_about_a_device(self) -> None:
        path = Path(self.useFixture(fixtures.TempDir()).path) / "log"
        lines = [{"devices": [{"device": "a"}]}, {"devices": []}, {"repaired": "a", "status": 0}, {"repaired": "b"}]
        path.write_text("a warning\n" + "".join(f"{json.dumps(line)}\n" for line in lines) + '{"devices": [{"dev')
        with mock.patch.dict("os.environ", AICLOUD_NOTIFICATIONS=str(path)):
            self.assertEqual([lines[0], lines[2]], script(self, "breakfix").reported("a"))

    def test_events_of_rules_in_neutrons_log(self) -> None:
        path = Path(self.useFixture(fixtures.TempDir()).path) / "log"
        logger = "2026-11-30 04:00:00.123 77 INFO oslo.messaging.notification.security_group_rule"
        context = "[None req-1d u1 p1 - - default default]"
        path.write_text(f'old\n{logger}.create.start {context} {{"payload": {{}}}}\n'
                        f'{logger}.create.end {context} {{"payload": {{"security_group_rule": {{"id": "r"}}}}}}\n'
                        f'{logger}.delete.end {context} {{"payload": {{"security_group_rule_id": "r"}}}}\n'
                        f'{logger}.create.end {context} {{"payl')  # is being written
        found = script(self, "sdn").events(path, 4)
        self.assertEqual({("create", "r"): "u1", ("delete", "r"): "u1"},
                         {key: event["user"] for key, event in found.items()})
        self.assertEqual("2026-11-30 04:00:00.123", found["create", "r"]["time"])

    def test_setting_that_is_missing_is_named(self) -> None:
        for module, step, name in (("image_registry", "upload_image", "AICLOUD_IMAGE_FILE"),
                                   ("sdn", "sdn_filter_audit_trail", "AICLOUD_NEUTRON_LOG"),
                                   ("fleet", "verify_ingestion", "AICLOUD_MANIFEST"),
                                   ("breakfix", "fault break gpu a", "AICLOUD_FAULT")):
            steps, (name_of_step, *arguments) = script(self, module), step.split()
            with mock.patch.dict("os.environ"), mock.patch.object(steps, "tenant", mock.Mock(), create=True):
                os.environ.pop(name, None)
                output = [] if arguments else [self.fleet.Output()]
                error = self.assertRaises(steps.common.NotSet, getattr(steps, name_of_step), *output, *arguments)
                self.assertEqual(f"{name} is not set: see doc/source/aicloud.md", str(error))

    def test_unknown_suite_is_refused_with_the_known_ones(self) -> None:
        for words in ((), ("nope",)):
            with (mock.patch.object(sys, "argv", ["configure.py", *words]),
                  contextlib.redirect_stderr(io.StringIO()) as told):
                ended = self.assertRaises(SystemExit, runpy.run_path, str(story.PROVIDER / "configure.py"),
                                          run_name="__main__")
            self.assertEqual((2, True), (ended.code, "bare_metal" in told.getvalue()))

    def test_a_server_group_is_isolated_if_nova_refuses_to_find_it(self) -> None:
        def servers(status: str, number: int) -> list[object]:
            return [SimpleNamespace(id=str(each), status=status, project_id="p", fault=None) for each in range(number)]

        bad = openstack.exceptions.BadRequestException
        ours = SimpleNamespace(status="ERROR", fault={"message": "server group g1 belongs to another project"})
        for answer, isolated in ((bad("Instance group g1 could not be found."), True), ([ours], True),
                                 (bad("Invalid input"), False), (servers("ERROR", 1), False),
                                 (servers("ACTIVE", 1), False)):
            security, output = script(self, "security"), self.fleet.Output()
            with mock.patch.multiple(
                    security, tenant=mock.MagicMock(), admin=mock.MagicMock(), stranger=mock.Mock(),
                    hosts=mock.Mock(return_value=[SimpleNamespace(gpus=["0"])]),
                    server_group=mock.Mock(return_value="g1"),
                    request=mock.Mock(side_effect=[servers("ERROR", 2), servers("ACTIVE", 2), answer])), \
                    mock.patch.dict("os.environ", AICLOUD_FLAVOR="gpu"):
                security.topology_block_atomic_allocation(output)
            self.assertIs(isolated, output["topology_block"]["isolation_enforced"], answer)

    def test_taints_end_with_the_steps_also_if_the_server_was_not_told(self) -> None:
        breakfix, output = script(self, "breakfix"), self.fleet.Output()
        host = SimpleNamespace(name="node1", gpus=[{"id": "a", "health": ["tainted"], "blocked": None}], alerts=[])
        untaint = mock.call("node1", "containerhost untaint a")
        with mock.patch.multiple(breakfix, own_host=lambda: host, told=mock.Mock(side_effect=breakfix.common.Unmet),
                                 on_host=mock.DEFAULT) as mocks:
            with testtools.ExpectedException(breakfix.common.Unmet), output.undo:
                breakfix.query_planned_notifications(output)
            self.assertEqual([untaint], mocks["on_host"].mock_calls)
        with mock.patch.multiple(breakfix, hosts=lambda: [host], on_host=mock.DEFAULT, fault=mock.DEFAULT,
                                 placed=lambda _: [{"total": 1, "reserved": 0}], reported=lambda _: [{"status": 0}]
                                 ) as mocks:
            breakfix.query_repair_history(output)
            self.assertEqual([untaint], mocks["on_host"].mock_calls)
            mocks["fault"].assert_called_once_with("mend", "gpu", "a")

    def test_what_the_next_tenant_finds_is_no_sanitization(self) -> None:
        for found, signature, sanitized in (("0\n0\n", "s", [True, True]), ("0\n3\n", "s", [False, True]),
                                            ("0\n0\n", "another's", [True, False])):
            breakfix, output = script(self, "breakfix"), self.fleet.Output()
            gpu = {"id": "a", "kind": "gpu", "taint": None}
            document = json.dumps({"devices": [{"id": "a", "provenance": {"signature": signature}}]})
            released = [{"valid": True, "cleaned": ["it was reset"], "signature": "s"}]
            with mock.patch.multiple(
                    breakfix, tenant=mock.Mock(), foreign_vpc=mock.Mock(return_value=(mock.Mock(), "n")),
                    inside=mock.Mock(side_effect=["", document, found]), on_host=mock.Mock(),
                    devices_of=mock.Mock(side_effect=[*3 * [{"a": ("node1", gpu)}], {}]),
                    hand_overs=mock.Mock(side_effect=[[], released])), mock.patch.multiple(
                    breakfix.common, launch=mock.MagicMock(), remove=mock.Mock()):
                breakfix.query_sanitization(output)
            self.assertEqual(sanitized, [machine["sanitized"] for machine in output["machines"]])
            self.assertTrue(output["machines"][1]["tenancy_preserved"])
