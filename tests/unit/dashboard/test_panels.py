# SPDX-License-Identifier: Apache-2.0
"""The panels' pages in a real Horizon, over services that answer what a test says."""

from importlib import resources
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fixtures

from containerhost.allocation.store import AllocationStore, Consumer
from containerhost.devices.model import Kind
from containerhost.inventory.scan import scan
from containerhost.operator.drawing import document
from containerhost.operator.drawing.hostreader import read_map
from tests.unit.containerhost.hosts import MEMORY, shared
from tests.unit.dashboard import base
from tests.unit.dashboard.services import Services

ADMIN, PROJECT = "/admin/accelerators/", "/project/accelerators/"
PICTURE = f"{ADMIN}hosts/node1/"
SCRIPT = "<script>alert(1)</script>"
ALL_FAILED, OWN_FAILED = "Unable to retrieve the accelerators", "Unable to retrieve the project"
ESCAPED = "&lt;script&gt;alert(1)&lt;/script&gt;"
SERVER = "c0c0c0c0-0000-4000-8000-000000000001"


class PanelsCase(base.HorizonCase):
    def setUp(self) -> None:
        super().setUp()
        from django.conf import settings
        from django.test import Client
        self.services = self.useFixture(Services())
        self.answers = self.services.answers
        self.logged_in()
        self.client = Client()
        # Horizon's other panels query services that these tests lack for their menu entries.
        for panel in settings.TEST_GLOBAL_MOCKS_ON_PANELS.values():
            self.useFixture(fixtures.MonkeyPatch(panel["method"], lambda *_: True))
        self.placement({"node1": {"0000:81:00.0": 0}})
        self.nova("gpu.small")

    def logged_in(self) -> None:
        from django.utils import timezone
        from openstack_auth.user import User
        catalog = [{"type": service, "name": service, "endpoints": [{
            "id": service, "region": "RegionOne", "region_id": "RegionOne", "interface": "public",
            "url": f"{self.services.url}/{service}"}]} for service in ("compute", "placement")]
        token = SimpleNamespace(id="token", expires=timezone.now() + timezone.timedelta(hours=1),
                                project={"id": "p", "name": "p"}, domain={"id": None, "name": None})
        user = User(id="u", token=token, user="someone", tenant_id="p", tenant_name="p", service_catalog=catalog,
                    roles=[{"name": "admin"}], authorized_tenants=[], enabled=True, endpoint=self.services.url,
                    services_region="RegionOne")
        self.useFixture(fixtures.MonkeyPatch("openstack_auth.utils.get_user", lambda request: user))

    def placement(self, hosts: dict[str, dict[str, int]], held: bool = True) -> None:
        """:param hosts: host -> device -> reserved"""
        providers: list[dict[str, Any]] = []
        for number, (host, devices) in enumerate(hosts.items()):
            root = f"host-{number}"
            providers.append({"uuid": root, "name": host, "parent_provider_uuid": None, "root_provider_uuid": root})
            for device, (name, reserved) in enumerate(devices.items()):
                uuid = f"{root}-{device}"
                providers.append({"uuid": uuid, "name": f"{host}_{name}", "parent_provider_uuid": root,
                                  "root_provider_uuid": root})
                path = f"/placement/resource_providers/{uuid}"
                self.answers[f"{path}/inventories"] = 200, {"inventories": {
                    "CUSTOM_GPU": {"total": 1, "reserved": reserved}}}
                self.answers[f"{path}/traits"] = 200, {"traits": ["CUSTOM_DEVICE_TAINTED"]}
                self.answers[f"{path}/allocations"] = 200, {"allocations": {
                    SERVER: {"resources": {"CUSTOM_GPU": 1}}} if held else {}}
        self.answers["/placement/resource_providers"] = 200, {"resource_providers": providers}
        self.hypervisors({host: {} for host in hosts})

    def hypervisors(self, hosts: dict[str, dict[str, Any]]) -> None:
        self.answers["/compute/os-hypervisors/detail"] = 200, {"hypervisors": [
            {"id": host, "hypervisor_hostname": host, "state": "up", "status": "enabled", "host_ip": "127.0.0.1",
             "service": {"id": host, "host": host, "disabled_reason": None}} | more for host, more in hosts.items()]}

    def nova(self, flavor: str, name: str = "train-1", **extra_specs: str) -> None:
        specs = extra_specs or {"pci_passthrough:alias": "gpu:1"}
        self.answers["/compute/servers/detail"] = 200, {"servers": [
            {"id": SERVER, "name": name, "status": "ACTIVE", "OS-EXT-SRV-ATTR:host": "node1",
             "flavor": {"original_name": flavor, "extra_specs": specs}}]}

    def page(self, path: str) -> str:
        answer = self.client.get(path)
        self.assertEqual(200, answer.status_code, answer)
        return str(answer.content.decode())


class ContentTest(PanelsCase):
    def test_devices_holders_and_health_for_administrators(self) -> None:
        page = self.page(ADMIN)
        for text in ("0000:81:00.0", "CUSTOM_GPU", f'<a href="/admin/instances/{SERVER}/detail">train-1</a>',
                     "In order"):
            self.assertIn(text, page)

    def test_devices_have_the_name_of_their_model(self) -> None:
        self.useFixture(fixtures.MonkeyPatch("nova_lxd_dashboard.pciids.model",
                                             {"CUSTOM_GPU": "NVIDIA A100 SXM4 40GB"}.get))
        self.assertIn("NVIDIA A100 SXM4 40GB", self.page(ADMIN))

    def test_what_is_out_of_order(self) -> None:
        self.placement({f"node{number}": {"0000:81:00.0": int(number == 1)} for number in (1, 2, 3)}, held=False)
        self.hypervisors({"node1": {}, "node2": {"state": "down"}, "node3": {
            "status": "disabled", "service": {"id": "3", "host": "node3", "disabled_reason": "new cables"}}})
        page = self.page(ADMIN)
        for text in ("Tainted by the operator", "Host down", "Host disabled: new cables"):
            self.assertIn(text, page)
        self.assertNotIn("In order", page)

    def test_servers_with_devices_for_tenants(self) -> None:
        page = self.page(PROJECT)
        for text in (f"/project/instances/{SERVER}/", "train-1", "gpu.small", "gpu: 1", "ACTIVE"):
            self.assertIn(text, page)

    def test_tenants_panel_asks_nova_for_the_own_project_alone(self) -> None:
        self.page(PROJECT)
        self.assertEqual([], [path for path in self.services.asked
                              if "placement" in path or "all_tenants" in path or "hypervisors" in path])

    def test_server_without_devices_is_not_listed(self) -> None:
        self.nova("small", name="plain", **{"hw:cpu_policy": "dedicated"})
        self.assertNotIn("plain", self.page(PROJECT))

    def test_hosts_are_shown_ten_at_a_time(self) -> None:
        without: dict[str, dict[str, int]] = {f"a{number:02}": {} for number in range(12)}
        self.placement(without | {f"node&{number:02}": {"0000:81:00.0": 0} for number in range(12)}, held=False)
        first, second = self.page(ADMIN), self.page(f"{ADMIN}?after=node%2609")
        self.assertIn("?after=node%2609", first)
        self.assertNotIn("node&amp;10", first)
        self.assertIn("node&amp;10", second)
        self.assertNotIn("node&amp;09", second)
        self.assertNotIn("?after=", second)


class SettingsTest(base.HorizonCase):
    def test_form_boots_from_images_and_keeps_its_other_defaults(self) -> None:
        from openstack_dashboard import defaults

        found = dict(vars(defaults))
        (file,) = resources.files("nova_lxd_dashboard.local_settings").glob("_[0-9]*.py")
        exec(compile(file.read_text(), file, "exec"), found)  # as Horizon does
        before = defaults.LAUNCH_INSTANCE_DEFAULTS
        self.assertEqual({**before, "create_volume": False}, found["LAUNCH_INSTANCE_DEFAULTS"])
        self.assertTrue(before["create_volume"])


class HostileTest(PanelsCase):
    def test_names_of_servers_flavors_and_hosts_are_text(self) -> None:
        self.nova(f"flavor{SCRIPT}", f"server{SCRIPT}", **{"pci_passthrough:alias": f"gpu{SCRIPT}:1"})
        self.placement({f"host{SCRIPT}": {f"device{SCRIPT}": 0}})
        self.hypervisors({f"host{SCRIPT}": {"status": "disabled", "service": {
            "id": "1", "host": "host", "disabled_reason": f"because{SCRIPT}"}}})
        for path, names in ((ADMIN, ("host", "device", "server", "because")), (PROJECT, ("server", "flavor", "gpu"))):
            page = self.page(path)
            self.assertNotIn(SCRIPT, page)
            for name in names:
                self.assertIn(f"{name}{ESCAPED}", page)

    def test_what_a_service_says_of_its_failure_is_text(self) -> None:
        self.answers["/compute/servers/detail"] = 500, {"computeFault": {"code": 500, "message": f"broken{SCRIPT}"}}
        page = self.page(PROJECT)
        self.assertNotIn(SCRIPT, page)
        self.assertIn(f"broken{ESCAPED}", page)


class FailureTest(PanelsCase):
    def assert_told(self, path: str, message: str) -> None:
        self.assertIn(message, self.page(path))

    def test_refused_or_broken_services_are_told(self) -> None:
        for status in (403, 404, 500):
            for path, asked, message in ((ADMIN, "/placement/resource_providers", ALL_FAILED),
                                         (ADMIN, "/compute/os-hypervisors/detail", ALL_FAILED),
                                         (PROJECT, "/compute/servers/detail", OWN_FAILED)):
                with self.subTest(status=status, asked=asked):
                    before, self.answers[asked] = self.answers[asked], (status, {})
                    self.assert_told(path, message)
                    self.answers[asked] = before

    def test_answer_that_is_no_json_is_told(self) -> None:
        self.answers["/placement/resource_providers"] = 200, b"<html>the proxy's own page</html>"
        self.assert_told(ADMIN, ALL_FAILED)

    def test_service_that_does_not_answer_is_told(self) -> None:
        self.services.stop()
        self.assert_told(ADMIN, ALL_FAILED)
        self.assert_told(PROJECT, OWN_FAILED)

    def test_expired_token_leads_to_the_login(self) -> None:
        for path, asked in ((ADMIN, "/placement/resource_providers"), (PROJECT, "/compute/servers/detail")):
            self.answers[asked] = 401, {}
            answer = self.client.get(path)
            self.assertEqual((302, True), (answer.status_code, "/auth/login/" in answer["location"]))


class PictureTest(PanelsCase):
    """The page of one host, whose exporter is at the port of the other services."""

    def setUp(self) -> None:
        super().setUp()
        self.exporter = f"http://{{ip}}:{self.services.url.rpartition(':')[2]}"
        self.setting(self.exporter)
        self.exported("instance-00000007")

    def setting(self, url: str, **more: Any) -> None:
        from django.test import override_settings
        changed = override_settings(NOVA_LXD_EXPORTER_URL=url, **more)
        changed.enable()
        self.addCleanup(changed.disable)

    def exported(self, container: str) -> None:
        store = AllocationStore(Path(self.useFixture(fixtures.TempDir(rootdir=MEMORY)).path))
        inventory = scan(shared("small"))
        gpu = next(device for device in inventory.devices if device.kind is Kind.GPU)
        store.claim([gpu], Consumer("nova", "lxd", container, SERVER), inventory.related)
        self.answers["/topology"] = 200, document.dump(read_map(shared("small"), store.records()))

    def status(self, path: str) -> int:
        return int(self.client.get(path).status_code)

    def asked_exporter(self) -> bool:
        return "/topology" in self.services.asked

    def test_table_leads_to_the_picture(self) -> None:
        self.assertRegex(self.page(ADMIN), f'<a href="{PICTURE}"[^>]*>node1</a>')
        self.assertFalse(self.asked_exporter())
        page = self.page(PICTURE)
        for text in ("<title>node1", '<svg xmlns="http://www.w3.org/2000/svg"', 'class="img-responsive"',
                     ">instance-00000007</text>", "<pre>", "NUMA node 1, socket 1"):
            self.assertIn(text, page)
        self.assertEqual(1, self.services.asked.count("/topology"))

    def test_without_the_setting_there_is_no_picture(self) -> None:
        self.setting("")
        self.assertNotIn(f'href="{PICTURE}"', self.page(ADMIN))
        self.assertEqual(404, self.status(PICTURE))
        self.assertFalse(self.asked_exporter())

    def test_hosts_that_nova_does_not_name_are_not_asked(self) -> None:
        for name in ("node2", "127.0.0.1", "node1%2f", "node1@evil.org"):
            self.assertEqual(404, self.status(f"{ADMIN}hosts/{name}/"), name)
        self.assertFalse(self.asked_exporter())

    def test_users_who_may_not_list_hypervisors_ask_no_host(self) -> None:
        self.answers["/compute/os-hypervisors/detail"] = 403, {"forbidden": {"code": 403, "message": "Policy"}}
        self.assertIn("Unable to retrieve the hypervisors", self.page(PICTURE))
        self.setting(self.exporter, POLICY_CHECK_FUNCTION=lambda *_: False)
        self.assertEqual(403, self.status(PICTURE))
        self.assertFalse(self.asked_exporter())

    def test_host_that_does_not_answer_is_told_with_the_reason(self) -> None:
        self.setting("http://{ip}:9")
        page = self.page(PICTURE)
        self.assertIn("There is no picture of this host.", page)
        self.assertIn("http://127.0.0.1:9/topology does not answer: [Errno 111] Connection refused", page)
        self.assertNotIn("<svg xmlns", page)

    def test_what_a_host_says_is_text(self) -> None:
        self.exported(f"</pre></title>{SCRIPT}")
        page = self.page(PICTURE)
        self.assertNotIn(SCRIPT, page)
        self.assertIn(f"{ESCAPED}", page)
        self.answers["/topology"] = 200, {"title": SCRIPT, "nodes": SCRIPT}
        page = self.page(PICTURE)
        self.assertNotIn(SCRIPT, page)
        self.assertIn("does not answer with a map of a host: HostMap.nodes is", page)

    def test_name_of_which_no_url_can_be_made_has_no_picture(self) -> None:
        self.placement({"a/b": {"0000:81:00.0": 0}})
        self.assertIn("0000:81:00.0", self.page(ADMIN))
        self.assertNotIn("/hosts/", self.page(ADMIN))
