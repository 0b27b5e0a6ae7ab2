# SPDX-License-Identifier: Apache-2.0
"""Containers on a real dockerd: their life, their limits, and what cannot be."""


from containerhost import errors
from containerhost.engines.contract import Status
from containerhost.engines.docker import frozen
from containerhost.engines.docker.client import DockerClient, Settings
from containerhost.engines.docker.engine import DockerEngine
from containerhost.engines.docker.images import Images
from containerhost.engines.spec import CloudInit, Cpu, Memory, Security
from containerhost.linux.sysfs import Host
from tests.functional_docker.base import DockerTestCase, MiB
from tests.waiting import await_that


class TestLife(DockerTestCase):
    def test_what_cannot_be_is_told_apart(self):
        for wanted, action in (
            (errors.EngineError, lambda: self.engine.create(self.spec("c2", cpu=Cpu(1, cores=frozenset({4095}))))),
            (errors.SpecError, lambda: self.engine.create(self.spec("c2", security=Security(privileged=True)))),
            (errors.SpecError, lambda: self.engine.create(self.spec("c2", cloud_init=CloudInit(user_data="x")))),
            (errors.EngineUnavailable, lambda: DockerEngine(DockerClient(Settings("unix:///nowhere"))).containers()),
        ):
            self.assertRaises(wanted, action)
        self.assertEqual((), self.engine.containers())

    def test_containers_of_others_and_their_labels_are_not_taken_for_ours(self):
        api = self.docker.daemon.api()
        api.create_container("polite", name="someones", labels={"containerhost": "[1]", "one.id": "7"})
        (state,) = self.engine.containers()
        self.assertEqual(("someones", Status.STOPPED, {}), (state.name, state.status, dict(state.labels)))
        self.assertRaises(errors.EngineNotFound, self.engine.update_devices, "someones", ())

    def test_frozen_by_a_daemon_that_was_killed_before_it_wrote_that_down(self):
        """Docker says that the container runs, and refuses to pause and to unpause it."""
        self.running()
        container = self.docker.daemon.api().inspect_container("c1")["Id"]
        images = Images(self.engine.client)
        for act, status in ((lambda: self.engine.freeze("c1"), Status.FROZEN),
                            (lambda: self.engine.unfreeze("c1"), Status.RUNNING),
                            (lambda: images.remove(images.commit("c1", "kept", "now")), Status.RUNNING),
                            (lambda: self.engine.stop("c1", timeout=20), Status.STOPPED)):
            self.freeze_unrecorded(container)
            act()
            self.assertEqual(status, self.engine.container("c1").status)
            self.assertEqual(status is Status.FROZEN, frozen.is_frozen(Host(), container))
            if status is Status.FROZEN:
                self.engine.unfreeze("c1")

    def freeze_unrecorded(self, container):
        group = frozen.freezer(Host(), container)
        group.freeze()
        await_that(lambda: group.is_frozen(Host()), "it is frozen")
        self.assertEqual(Status.RUNNING, self.engine.container("c1").status)

    def test_record_of_a_container_that_others_removed_goes_with_its_deletion(self):
        for name in ("c1", "c2"):
            self.running(name)
        self.engine.rename("c1", "old")
        for name in ("old", "c2"):
            self.docker.daemon.api().remove_container(name, force=True)
        before = self.left()
        self.engine.delete("c1")
        self.assertEqual(before, self.left())
        self.engine.delete("old")
        self.assertEqual(1, len(self.left()), "the record of c2")
        self.engine.delete("c2")
        self.assertEqual([], self.left())

    def test_a_container_without_its_record_does_not_start(self):
        self.engine.create(self.spec())
        (record,) = self.docker.daemon.records.glob("*.json")
        kept = record.read_text()
        record.write_text("{")
        error = self.assertRaises(errors.EngineError, self.engine.start, "c1")
        self.assertIn("cannot be trusted", str(error))
        record.write_text(kept)
        self.engine.start("c1")


class TestLimits(DockerTestCase):
    def test_limits_hold_inside_together(self):
        self.running(cpu=Cpu(1, cores=frozenset({0}), nodes=frozenset({0}), share=50), memory=Memory(48 * MiB),
                     limits={"nofile": "1024"}, environment={"GREETING": "a b; $(c)"})
        _, status = self.inside("c1", "cat", "/proc/1/status")
        self.assertRegex(status, r"Cpus_allowed_list:\s0\n")
        self.assertRegex(status, r"Mems_allowed_list:\s0\n")
        self.assertRegex(self.inside("c1", "cat", "/proc/1/limits")[1], r"Max open files\s+1024\s+1024")
        self.assertEqual((0, "a b; $(c)\n"), self.inside("c1", "sh", "-c", 'echo "$GREETING"'))
        limits = self.docker.daemon.api().inspect_container("c1")["HostConfig"]
        self.assertEqual((50_000, 48 * MiB), (limits["CpuQuota"], limits["Memory"]))

    def test_nothing_that_widens_a_container(self):
        self.running()
        made = self.docker.daemon.api().inspect_container("c1")["HostConfig"]
        self.assertEqual((False, None), (made["Privileged"], made["SecurityOpt"]))
        capabilities = int(next(line for line in self.inside("c1", "cat", "/proc/1/status")[1].splitlines()
                                if line.startswith("CapBnd")).split()[1], 16)
        for name, bit in (("SYS_ADMIN", 21), ("NET_ADMIN", 12), ("IPC_LOCK", 14), ("SYS_MODULE", 16)):
            self.assertEqual(0, capabilities >> bit & 1, name)
