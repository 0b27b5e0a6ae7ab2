# SPDX-License-Identifier: Apache-2.0
"""Test a server's life cycle by nova's API on the real LXD."""

import base64
import email
import json
import os
import time
from typing import ClassVar

import fixtures
import yaml
from nova import context, exception, objects
from nova.compute import power_state
from nova.tests.functional.api import client

from containerhost import errors
from containerhost.engines.contract import Status
from containerhost.engines.spec import ContainerSpec, Cpu, Memory, RootDisk
from tests import levels
from tests.functional.lxd import POOL
from tests.functional.nova import base
from tests.waiting import await_that

MIB = 2**20
NOVA = 64060  # Debian's user of nova-compute


class BootTest(base.LxdServers):
    def test_a_server_is_what_its_flavor_says_and_goes_without_a_trace(self) -> None:
        server = self.server(self.flavor(vcpu=1, memory_mb=96, disk=1))
        config = self.config(server)["config"]
        self.assertEqual((str(96 * MIB), "1", "false", "true"),
                         (config["limits.memory"], config["limits.cpu"], config["security.privileged"],
                          config["security.idmap.isolated"]))
        self.assertEqual(100, self.api.get_server(server["id"])["progress"])
        self.assertEqual(str(1024 * MIB), self.config(server)["devices"]["root"]["size"])
        self._delete_server(server)
        self.assert_nothing_left()

    @levels.exhaustive("test_images boots every format")
    def test_every_image_format(self) -> None:
        for form in self.lxd.images:
            with self.subTest(form):
                server = self.server(image=self.image(form))
                self.assertEqual(0, self.inside(server, "busybox", "true").status)
                self._delete_server(server)
        self.assert_nothing_left()

    def test_what_the_tenant_and_the_cloud_say_reaches_the_guest(self) -> None:
        script = "#!/bin/sh\necho 'hello'\n"
        self.api.post_keypair({"keypair": {"name": "mine", "type": "ssh", "public_key": KEY}})
        server = self.server(name="train-1", config_drive=True, key_name="mine", metadata={"role": "worker"},
                             user_data=base64.b64encode(script.encode()).decode())
        config = self.config(server)["config"]
        self.assertEqual(script, config.get("cloud-init.user-data", config.get("user.user-data")))
        self.assertEqual({"instance-id": server["id"], "local-hostname": "train-1", "public-keys": [KEY]},
                         yaml.safe_load(config["user.meta-data"]))
        for drive in ("/config-drive", "/var/lib/cloud/seed/config_drive"):
            metadata = json.loads(self.inside(server, "cat", f"{drive}/openstack/latest/meta_data.json").output)
            self.assertEqual(("train-1", server["id"], {"role": "worker"}),
                             (metadata["name"], metadata["uuid"], metadata["meta"]))
            self.assertEqual(script, self.inside(server, "cat", f"{drive}/openstack/latest/user_data").output)
            self.assertNotEqual(0, self.inside(server, "touch", f"{drive}/mine").status)
        self._delete_server(server)
        self.assert_nothing_left()

    @levels.exhaustive("kernel.nova and unit/nova have it")
    def test_only_root_of_the_container_reads_the_config_drive(self) -> None:
        """Test it for every user that nova-compute may run as on the host."""
        server = self.server(config_drive=True, user_data=base64.b64encode(b"secret").decode())
        for owner in (0, NOVA):
            for path in (self.state / "instances" / server["id"]).rglob("configdrive/**/*"):
                os.chown(path, owner, owner)
            for drive in ("/config-drive", "/var/lib/cloud/seed/config_drive"):
                for file in ("meta_data.json", "user_data"):
                    command = ("cat", f"{drive}/openstack/latest/{file}")
                    self.assertEqual(0, self.inside(server, *command).status, (owner, command))
                    for user in (1000, NOVA):
                        ids = ("--setuid", str(user), "--setgid", str(user))
                        self.assertNotEqual(0, self.inside(server, *ids, *command).status, (owner, user, command))

    @levels.exhaustive("kernel.nova and unit/nova have it")
    def test_bad_user_data_does_not_fail_the_boot(self) -> None:
        texts = (b"#cloud-config\n\t- {no yaml", b"#cloud-config\n- a list\n", b"#cloud-config\na: 1\na: 2\n", b"a\0b",
                 b"\xff\xfe")
        for text in levels.budget(gate=(levels.turn(texts),), exhaustive=texts):
            with self.subTest(text):
                server = self.server(user_data=base64.b64encode(text).decode(), config_drive=True)
                config = self.config(server)["config"]
                message = email.message_from_string(config.get("cloud-init.user-data") or config["user.user-data"])
                self.assertEqual(text, message.get_payload(decode=True))
                drive = self.inside(server, "sh", "-c", "base64 /config-drive/openstack/latest/user_data")
                self.assertEqual(text, base64.b64decode(drive.output), drive.output)
                self._delete_server(server)
        self.assert_nothing_left()

    def test_flavor_keys(self) -> None:
        server = self.server(self.flavor(lxd__nested_allowed="true", lxd__privileged_allowed="false",
                                         lxd__isolated="false", quota__disk_read_bytes_sec="1048576"))
        config = self.config(server)
        self.assertEqual(("true", "false", "false"), tuple(config["config"][f"security.{key}"] for key in
                                                           ("nesting", "privileged", "idmap.isolated")))
        self.assertEqual("1048576", config["devices"]["root"]["limits.read"])

    def test_bad_flavor_keys_are_refused_by_the_api(self) -> None:
        for key, value in (("lxd__privileged_allowed", "perhaps"), ("lxd__gpu_capabilities", "all"),
                           ("lxd__nested_alowed", "true")):
            with self.subTest(key):
                error = self.assertRaises(client.OpenStackApiException, self.flavor, **{key: value})
                self.assertEqual(400, error.response.status_code)

    def test_what_cannot_be_ends_the_boot_with_a_reason(self) -> None:
        table = [
            (self.flavor(lxd__privileged_allowed="true"), None, "allow_privileged"),
            (self.flavor(quota__disk_read_bytes_sec="1", quota__disk_read_iops_sec="1"), None, "together"),
            (self.flavor(), self.image(content=b"no image at all" * 1000), "unacceptable"),
            (self.flavor(), self.image(hw_architecture="aarch64"), "No valid host"),
        ]
        for flavor, image, words in table:
            with self.subTest(words):
                server = self.server(flavor, image, expected="ERROR")
                self.assertIn(words, self.fault(server))
                self._delete_server(server)
                self.assert_nothing_left()


class PrivilegedTest(base.LxdServers):
    options: ClassVar = {("lxd", "allow_privileged"): True}

    def test_the_operator_and_the_flavor_together_make_a_container_privileged(self) -> None:
        # BootTest has one that is not privileged.
        for wanted, root in levels.some("privileged by flavor", (("true", "0"), ("false", "1")), (0,)):
            with self.subTest(wanted):
                server = self.server(self.flavor(lxd__privileged_allowed=wanted))
                self.assertEqual(wanted, self.config(server)["config"]["security.privileged"])
                mapped = self.inside(server, "cat", "/proc/self/uid_map").output.split()[1]
                self.assertEqual(root == "0", mapped == "0")
                self._delete_server(server)


class CpuTest(base.LxdServers):
    """Two real cores, one on each of the emulated nodes: core 0 for everybody, core 1 for who wants it alone."""

    options: ClassVar = {("compute", "cpu_shared_set"): "0", ("compute", "cpu_dedicated_set"): "1"}

    def test_cores_are_those_nova_placed_the_server_on(self) -> None:
        table = [({}, "0-0"), ({"hw__numa_nodes": "1"}, "0-0"), ({"hw__cpu_policy": "dedicated"}, "1-1")]
        for specs, cores in table:
            with self.subTest(specs):
                server = self.server(self.flavor(**specs))
                self.assertEqual(cores, self.config(server)["config"]["limits.cpu"])
                allowed = self.inside(server, "grep", "Cpus_allowed_list", "/proc/1/status").output.split()[-1]
                self.assertEqual(cores[0], allowed)
                self._delete_server(server)
        self.assert_nothing_left()


class LifeTest(base.LxdServers):
    def pid(self, server: dict) -> int | None:
        return self.lxd.engine.metrics(self.container(server).name).pid

    @levels.exhaustive("FlavorTest stops and starts a server with devices")
    def test_stop_and_start(self) -> None:
        server = self.server()
        self._stop_server(server)
        self.assertEqual(Status.STOPPED, self.container(server).status)
        self._start_server(server)
        self.assertEqual(Status.RUNNING, self.container(server).status)

    def test_a_soft_reboot_lets_the_guest_end_itself_and_a_hard_one_does_not(self) -> None:
        server = self.server()
        for hard, ended in ((False, 0), (True, 1)):
            with self.subTest(hard=hard):
                self.inside(server, "sh", "-c", "rm -f /root/ended; echo '::shutdown:/bin/touch /root/ended' "
                                                "> /etc/inittab; kill -HUP 1; sleep 1")
                before = self.pid(server)
                self.notifier.reset()
                self._reboot_server(server, hard=hard)
                self.assertNotEqual(before, self.pid(server))
                self.assertEqual(ended, self.inside(server, "test", "-e", "/root/ended").status)

    @levels.exhaustive("a soft reboot and a hard one remain")
    def test_a_soft_reboot_of_a_deaf_guest_becomes_a_hard_one(self) -> None:
        self.flags(shutdown_timeout=1)  # busybox needs longer
        server = self.server()
        before = self.pid(server)
        self._reboot_server(server)
        self.assertNotEqual(before, self.pid(server))
        self.assertIn("did not shut down within 1 s", self.stdlog.logger.output)

    def test_pause_and_suspend_stop_the_processes_and_keep_them(self) -> None:
        server = self.server()
        pid = self.pid(server)
        for action, counter, state in (("pause", "unpause", "PAUSED"), ("suspend", "resume", "SUSPENDED")):
            with self.subTest(action):
                self.api.post_server_action(server["id"], {action: {}})
                self._wait_for_state_change(server, state)
                self.assertEqual(Status.FROZEN, self.container(server).status)
                self.api.post_server_action(server["id"], {counter: {}})
                self._wait_for_state_change(server, "ACTIVE")
                self.assertEqual((Status.RUNNING, pid), (self.container(server).status, self.pid(server)))

    def test_console_output(self) -> None:
        server = self.server()
        self.inside(server, "sh", "-c", "for n in 1 2 3; do echo line $n; done > /dev/console")
        # The daemon passes on what was printed a moment later.
        await_that(lambda: "line 3" in self.console(server), "the console's output")
        everything = ["line 1", "line 2", "line 3"]
        for length, expected in (({}, everything), ({"length": 2}, ["line 3"]), ({}, everything)):
            self.assertEqual(expected, [line for line in self.console(server, **length).splitlines() if "line" in line])
        self._stop_server(server)
        for _ in range(2):
            self.assertEqual(1, self.console(server).count("line 1"))

    def console(self, server: dict, **length: int) -> str:
        return self.api.post_server_action(server["id"], {"os-getConsoleOutput": length})["output"]

    @levels.exhaustive("units show it; the console of a server that ran remains")
    def test_console_output_of_a_server_that_never_ran(self) -> None:
        server = self.server()
        self.lxd.engine.delete(self.container(server).name)
        self.lxd.engine.create(ContainerSpec(
            self.instance(server).name, self.lxd.imported(), Cpu(1), Memory(64 * MIB), RootDisk(POOL),
            labels={"nova.uuid": server["id"]}))
        self.assertEqual("", self.console(server))

    def test_diagnostics(self) -> None:
        server = self.server(self.flavor(memory_mb=96))
        found = self.api.api_get(f"/servers/{server['id']}/diagnostics").body
        self.assertEqual(("running", "lxd", 96),
                         (found["state"], found["hypervisor"], found["memory_details"]["maximum"]))
        self.api.microversion = "2.47"
        self.assertIn("cpu0_time", self.api.api_get(f"/servers/{server['id']}/diagnostics").body)

    @levels.exhaustive("WatchTest has a guest that ends itself")
    def test_a_guest_that_powers_itself_off_is_noticed(self) -> None:
        server = self.server()
        self.inside(server, "poweroff")
        await_that(lambda: self.container(server).status is Status.STOPPED, "poweroff")
        self.computes[base.HOST].manager._sync_power_states(base.nova_context.get_admin_context())
        self._wait_for_state_change(server, "SHUTOFF")

    @levels.exhaustive("tests/unit/costs counts requests")
    def test_periodic_power_states_cost_one_request(self) -> None:
        servers = [self.server() for _ in range(3)]
        asked: list[tuple] = []
        client = self.driver._backend.engine.client
        original = client.request
        self.stub_out(f"{type(client).__module__}.LxdClient.request",
                      lambda self, *args, **kwargs: asked.append(args) or original(*args, **kwargs))
        self.driver._backend.states.changed()
        time.sleep(0.01)
        states = [self.driver.get_info(self.instance(server)).state for server in servers]
        self.assertEqual([power_state.RUNNING] * 3, states)
        self.assertEqual([("get", "instances")], asked)


class HostTest(base.LxdServers):
    def test_what_is_not_novas_is_neither_seen_nor_touched(self) -> None:
        self.lxd.engine.create(ContainerSpec("mine", self.lxd.imported(), Cpu(1), Memory(64 * MIB), RootDisk(POOL)))
        server = self.server()
        self.assertEqual([server["id"]], self.driver.list_instance_uuids())
        self.assertEqual(1, self.driver.get_num_instances())
        self.restart_compute_service(self.computes[base.HOST])
        self._delete_server(server)
        self.assertEqual(["mine"], [state.name for state in self.lxd.engine.containers()])

    @levels.exhaustive("test_what_is_not_novas_is_neither_seen_nor_touched restarts nova-compute beside a server")
    def test_running_servers_outlive_a_restart_of_nova_compute(self) -> None:
        server = self.server(config_drive=True)
        pid = self.lxd.engine.metrics(self.container(server).name).pid
        self.restart_compute_service(self.computes[base.HOST])
        self.assertEqual(pid, self.lxd.engine.metrics(self.container(server).name).pid)
        self._delete_server(server)
        self.assert_nothing_left()

    def test_servers_start_again_after_the_host_did(self) -> None:
        self.flags(resume_guests_state_on_host_boot=True)
        server = self.server()
        self.lxd.engine.stop(self.container(server).name, timeout=10, force=True)
        self.restart_compute_service(self.computes[base.HOST])
        self.assertEqual(Status.RUNNING, self.container(server).status)

    def test_a_server_whose_container_is_lost_can_be_deleted(self) -> None:
        server = self.server(config_drive=True)
        self.lxd.engine.delete(self.container(server).name)
        self._delete_server(server)
        self.assert_nothing_left()

    def test_without_a_daemon_calls_fail_with_a_reason_and_nothing_is_lost(self) -> None:
        server = self.server()
        self.lxd.daemon.stop()
        try:
            failed = self.server(expected="ERROR")
            # Nova's claim queries the host before the driver is called to boot.
            self.assertIn("is the daemon running", self.stdlog.logger.output)
        finally:
            self.lxd.daemon.start()
        self.assertEqual(Status.RUNNING, self.container(server).status)
        for each in (server, failed):
            self._delete_server(each)
        self.assert_nothing_left()

    def test_another_name_or_a_missing_storage_pool_stops_nova_compute_with_a_reason(self) -> None:
        (node,) = objects.ComputeNodeList.get_all(context.get_admin_context())
        self.useFixture(fixtures.MockPatch("nova.virt.node.read_local_node_uuid", lambda: node.uuid))
        error = self.assertRaises(exception.InvalidConfiguration, self.driver.init_host, "renamed")
        self.assertIn(f"set it to '{base.HOST}' again", str(error))
        self.flags(storage_pool="absent", group="lxd")
        error = self.assertRaises(exception.InvalidConfiguration, self.driver.init_host, base.HOST)
        self.assertIn("absent", str(error))

    @levels.exhaustive("units show it; a boot that ends with a reason remains")
    def test_a_pool_that_went_missing_fails_the_boot_with_a_reason(self) -> None:
        self.flags(storage_pool="absent", group="lxd")
        failed = self.server(expected="ERROR")
        self.assertIn("pool", self.reasons(failed)[0])
        self._delete_server(failed)
        self.assert_nothing_left()

    @levels.exhaustive("units show it; a boot that ends with a reason remains")
    def test_a_full_pool_fails_the_boot_with_a_reason(self) -> None:
        def full(*_: object, **__: object) -> None:
            raise errors.StorageFull("create container: LXD says: no space left on device")
        self.stub_out("containerhost.engines.lxd.engine.LxdEngine.create", full)
        failed = self.server(expected="ERROR")
        self.assertIn("no space left", self.reasons(failed)[0])
        self._delete_server(failed)
        self.assert_nothing_left()

    def test_the_host_is_described(self) -> None:
        hypervisor = self.admin_api.api_get("/os-hypervisors/detail").body["hypervisors"][0]
        self.assertEqual(("lxd", "up", base.HOST),
                         (hypervisor["hypervisor_type"], hypervisor["state"], hypervisor["hypervisor_hostname"]))
        self.assertIn("load average", self.driver.get_host_uptime())
        self.assertEqual({"kernel", "user", "idle", "iowait", "frequency"}, set(self.driver.get_host_cpu_stats()))
        traits = self._get_provider_traits(self._get_provider_uuid_by_host(base.HOST))
        self.assertIn("CUSTOM_LXD", traits)


KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGKMhcuMXfnxWzgMMeKlFnYhJ2rcHXbrHAGFXcTTnf5X tenant@home"
