"""Containers on a real dockerd: their life, their limits, and what cannot be."""

import threading

from containerhost import errors
from containerhost.engines import Status
from containerhost.engines.docker.client import DockerClient, Settings
from containerhost.engines.docker.engine import DockerEngine
from containerhost.spec import CloudInit, Cpu, IoLimit, Memory, Mount, RootDisk, Security
from tests.functional_docker.base import DockerTestCase, MiB
from tests.functional_docker.dockerd import leftovers


class TestLife(DockerTestCase):
    def test_from_nothing_to_running_and_back(self):
        self.engine.create(self.spec())
        self.assertEqual(Status.STOPPED, self.engine.container("c1").status)
        self.assertIsNone(self.engine.container("c1").last_used)
        self.assertEqual(b"", self.engine.console_log("c1"))
        self.engine.start("c1")
        (state,) = self.engine.containers()
        self.assertEqual(("c1", Status.RUNNING, {"one.id": "id-of-c1"}), (state.name, state.status, dict(state.labels)))
        self.assertIsNotNone(self.engine.container("c1").last_used)
        self.engine.delete("c1")
        self.assertEqual((), self.engine.containers())
        self.assertEqual([], leftovers(self.docker.daemon))

    def test_power_calls_may_be_repeated(self):
        self.running()
        for action, status in (
            (lambda: self.engine.start("c1"), Status.RUNNING),
            (lambda: self.engine.freeze("c1"), Status.FROZEN),
            (lambda: self.engine.unfreeze("c1"), Status.RUNNING),
            (lambda: self.engine.stop("c1", timeout=60, force=True), Status.STOPPED),
            (lambda: self.engine.start("c1"), Status.RUNNING),
        ):
            action()
            action()
            self.assertEqual(status, self.engine.container("c1").status)

    def test_soft_stop_asks_the_first_program(self):
        for prepare in (lambda: None, lambda: self.engine.freeze("c1")):
            self.running()
            self.printed("c1", b"up")
            prepare()
            self.engine.stop("c1", timeout=60)
            self.assertEqual(Status.STOPPED, self.engine.container("c1").status)
            self.printed("c1", b"asked to end")
            self.engine.delete("c1")

    def test_soft_stop_of_a_deaf_program_says_that_it_still_runs(self):
        self.running(image="deaf")
        self.printed("c1", b"up")
        error = self.assertRaises(errors.EngineTimeout, self.engine.stop, "c1", timeout=1)
        self.assertIn("within 1 s", str(error))
        self.assertEqual(Status.RUNNING, self.engine.container("c1").status)

    def test_restart_gives_a_new_first_process(self):
        self.running()
        for force in (False, True):
            self.printed("c1", b"up")
            before = self.engine.metrics("c1").pid
            self.engine.restart("c1", timeout=60, force=force)
            self.assertNotIn(self.engine.metrics("c1").pid, (before, None))

    def test_delete_works_from_every_state(self):
        def frozen():
            self.running()
            self.engine.freeze("c1")

        for prepare in (lambda: None, lambda: self.engine.create(self.spec()), self.running, frozen):
            prepare()
            self.engine.delete("c1")
            self.assertFalse(self.engine.exists("c1"))
        self.assertEqual([], leftovers(self.docker.daemon))

    def test_two_deletions_at_once_both_succeed(self):
        self.running()
        failures = []

        def delete():
            try:
                self.engine.delete("c1")
            except Exception as error:
                failures.append(error)

        threads = [threading.Thread(target=delete) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(([], False), (failures, self.engine.exists("c1")))

    def test_containers_of_others_and_their_labels_are_not_taken_for_ours(self):
        api = self.docker.daemon.api()
        api.create_container("polite", name="someones", labels={"containerhost": "[1]", "one.id": "7"})
        (state,) = self.engine.containers()
        self.assertEqual(("someones", Status.STOPPED, {}), (state.name, state.status, dict(state.labels)))
        self.assertRaises(errors.EngineNotFound, self.engine.refit, "someones", ())

    def test_the_daemon_restarts_while_a_container_runs(self):
        self.running()
        before = self.engine.metrics("c1").pid
        self.docker.daemon.stop()
        try:
            self.assertRaises(errors.EngineUnavailable, self.engine.containers)
        finally:
            self.docker.daemon.start()
        self.assertEqual(before, self.engine.metrics("c1").pid)

    def test_what_cannot_be_is_told_apart_and_changes_nothing(self):
        self.engine.create(self.spec())
        for wanted, action in (
            (errors.EngineNotFound, lambda: self.engine.start("c2")),
            (errors.EngineNotFound, lambda: self.engine.container("c2")),
            (errors.EngineNotFound, lambda: self.engine.console_log("c2")),
            (errors.EngineNotFound, lambda: self.engine.create(self.spec("c2", image="no-such-image"))),
            (errors.EngineConflict, lambda: self.engine.create(self.spec())),
            (errors.EngineError, lambda: self.engine.create(self.spec("c2", cpu=Cpu(1, cores=frozenset({4095}))))),
            (errors.EngineError, lambda: self.engine.create(self.spec("not/a name"))),
            (errors.SpecError, lambda: self.engine.create(self.spec("c2", security=Security(privileged=True)))),
            (errors.SpecError, lambda: self.engine.create(self.spec("c2", cloud_init=CloudInit(user_data="x")))),
            (errors.SpecError, lambda: self.engine.create(self.spec("c2", root=RootDisk("p", io=IoLimit(1 << 20))))),
            (errors.EngineConflict, lambda: self.engine.verify("c1", ())),
            (errors.EngineUnavailable, lambda: DockerEngine(DockerClient(Settings("unix:///nowhere"))).containers()),
        ):
            self.assertRaises(wanted, action)
        self.assertEqual(["c1"], [state.name for state in self.engine.containers()])

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
    def test_limits_hold_inside(self):
        self.running(cpu=Cpu(1, cores=frozenset({0}), nodes=frozenset({0}), share=50), memory=Memory(48 * MiB),
                     limits={"nofile": "1024"}, environment={"GREETING": "a b; $(c)"})
        _, status = self.inside("c1", "cat", "/proc/1/status")
        self.assertRegex(status, r"Cpus_allowed_list:\s0\n")
        self.assertRegex(status, r"Mems_allowed_list:\s0\n")
        self.assertRegex(self.inside("c1", "cat", "/proc/1/limits")[1], r"Max open files\s+1024\s+1024")
        self.assertEqual((0, "a b; $(c)\n"), self.inside("c1", "sh", "-c", 'echo "$GREETING"'))
        limits = self.docker.daemon.api().inspect_container("c1")["HostConfig"]
        self.assertEqual((50_000, 48 * MiB), (limits["CpuQuota"], limits["Memory"]))

    def test_memory_is_not_more_than_asked(self):
        self.running(memory=Memory(32 * MiB))
        status, output = self.inside("c1", "sh", "-c",
                                     "x=$(head -c 67108864 /dev/zero | tr '\\0' a); echo survived")
        self.assertNotIn("survived", output)
        self.assertNotEqual(0, status)

    def test_nothing_that_widens_a_container(self):
        self.running()
        made = self.docker.daemon.api().inspect_container("c1")["HostConfig"]
        self.assertEqual((False, None), (made["Privileged"], made["SecurityOpt"]))
        capabilities = int(next(line for line in self.inside("c1", "cat", "/proc/1/status")[1].splitlines()
                                if line.startswith("CapBnd")).split()[1], 16)
        for name, bit in (("SYS_ADMIN", 21), ("NET_ADMIN", 12), ("IPC_LOCK", 14), ("SYS_MODULE", 16)):
            self.assertEqual(0, capabilities >> bit & 1, name)

    def test_mounts_arrive_read_only(self):
        source = self.docker.daemon.base / "drive"
        source.mkdir(exist_ok=True)
        (source / "meta").write_text("hello\n")
        self.running(mounts=(Mount("context", str(source), "/context"),))
        self.assertEqual((0, "hello\n"), self.inside("c1", "cat", "/context/meta"))
        self.assertNotEqual(0, self.inside("c1", "touch", "/context/more")[0])
