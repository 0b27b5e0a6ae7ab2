import os
import threading

from testtools.matchers import LessThanOrEqual

from containerhost import errors
from containerhost.engines import Status
from containerhost.spec import CloudInit, Cpu, IoLimit, Memory, Mount, RootDisk, Security
from tests.functional.containerhost.base import LxdTestCase, MiB, leftovers
from tests.functional.lxd import POOL


class TestLife(LxdTestCase):
    def test_from_nothing_to_running_and_back(self):
        self.engine.create(self.spec())
        self.assertEqual(Status.STOPPED, self.engine.container("c1").status)
        self.assertIsNone(self.engine.container("c1").last_used)
        self.engine.start("c1")
        (state,) = self.engine.containers()
        self.assertEqual((Status.RUNNING, {"nova.uuid": "uuid-of-c1"}), (state.status, dict(state.labels)))
        self.assertIsNotNone(state.last_used)
        self.engine.delete("c1")
        self.assertEqual((), self.engine.containers())
        self.assertEqual([], leftovers(self.lxd, "c1"))

    def test_power_calls_may_be_repeated(self):
        self.running()
        for action, status in (
            (lambda: self.engine.start("c1"), Status.RUNNING),
            (lambda: self.engine.freeze("c1"), Status.FROZEN),
            (lambda: self.engine.unfreeze("c1"), Status.RUNNING),
            (lambda: self.engine.stop("c1", timeout=10, force=True), Status.STOPPED),
            (lambda: self.engine.start("c1"), Status.RUNNING),
        ):
            action()
            action()
            self.assertEqual(status, self.engine.container("c1").status)

    def test_soft_stop_lets_init_end_the_guest(self):
        self.running()
        self.engine.stop("c1", timeout=20)
        self.assertEqual(Status.STOPPED, self.engine.container("c1").status)
        self.assertIn(b"The system is going down", self.engine.console_log("c1"))

    def test_soft_stop_of_a_frozen_container(self):
        self.running()
        self.engine.freeze("c1")
        self.engine.stop("c1", timeout=20)
        self.assertEqual(Status.STOPPED, self.engine.container("c1").status)

    def test_soft_stop_of_a_deaf_guest_says_that_it_still_runs(self):
        self.running()
        pid = self.engine.metrics("c1").pid
        os.kill(pid, 19)  # SIGSTOP: an init that never answers
        self.addCleanup(self.engine.stop, "c1", timeout=10, force=True)
        error = self.assertRaises(errors.EngineTimeout, self.engine.stop, "c1", timeout=1)
        self.assertIn("did not shut down within 1 s", str(error))

    def test_restart_gives_a_new_first_process(self):
        self.running()
        for force in (False, True):
            before = self.engine.metrics("c1").pid
            self.engine.restart("c1", timeout=20, force=force)
            self.assertNotIn(self.engine.metrics("c1").pid, (before, None))

    def test_delete_works_from_every_state(self):
        def frozen():
            self.running()
            self.engine.freeze("c1")

        for prepare in (lambda: None, lambda: self.engine.create(self.spec()), self.running, frozen):
            prepare()
            self.engine.delete("c1")
            self.assertFalse(self.engine.exists("c1"))
        self.assertEqual([], leftovers(self.lxd, "c1"))

    def test_delete_waits_for_a_creation_that_lost_its_caller(self):
        body = {"name": "c1", "type": "container", "profiles": [], "config": {},
                "source": {"type": "image", "fingerprint": self.lxd.imported()},
                "devices": {"root": {"type": "disk", "path": "/", "pool": POOL}}}
        # As a killed nova-compute leaves it: asked for, not waited for.
        self.engine.client.request("post", "instances", asked="create", json=body)
        self.engine.delete("c1")
        self.assertFalse(self.engine.exists("c1"))
        for operation in self.engine.client.operations():
            if operation["status_code"] < 200:
                self.engine.client.wait(operation, "settle")
        self.assertFalse(self.engine.exists("c1"))

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

    def test_what_cannot_be_is_told_apart(self):
        self.engine.create(self.spec())
        for wanted, action in (
            (errors.EngineNotFound, lambda: self.engine.start("c2")),
            (errors.EngineNotFound, lambda: self.engine.container("c2")),
            (errors.EngineNotFound, lambda: self.engine.console_log("c2")),
            (errors.EngineNotFound, lambda: self.engine.pool("nowhere")),
            (errors.EngineNotFound, lambda: self.engine.create(self.spec("c2", image="no-such-image"))),
            (errors.EngineNotFound, lambda: self.engine.create(self.spec("c2", root=RootDisk("nowhere")))),
            (errors.EngineConflict, lambda: self.engine.create(self.spec())),
            (errors.SpecError, lambda: self.engine.create(self.spec("c2", cpu=Cpu(1, cores=frozenset({0, 4095}))))),
            (errors.EngineError, lambda: self.engine.create(self.spec("not/a name"))),
            (errors.EngineConflict, lambda: self.engine.verify("c1", ())),
        ):
            self.assertRaises(wanted, action)
        self.assertEqual(["c1"], [state.name for state in self.engine.containers()])

    def test_a_container_that_cannot_start_says_why(self):
        self.engine.create(self.spec(limits={"memlock": str(1 << 60)}))
        error = self.assertRaises(errors.EngineError, self.engine.start, "c1")
        self.assertIn("memlock", str(error))

    def test_console_log_of_a_container_that_never_ran_is_empty(self):
        self.engine.create(self.spec())
        self.assertEqual(b"", self.engine.console_log("c1"))


class TestLimits(LxdTestCase):
    def test_limits_hold_inside(self):
        last = max(os.sched_getaffinity(0))
        self.running(cpu=Cpu(1, cores=frozenset({last}), share=50), memory=Memory(96 * MiB),
                     root=RootDisk(POOL, size=64 * MiB, io=IoLimit(read_iops=500, write_bytes=10 * MiB)),
                     limits={"nofile": "1024"})
        self.assertEqual((0, f"{last}\n"), self.inside("c1", "sh", "-c",
                                                       "sed -n 's/^Cpus_allowed_list:.//p' /proc/1/status"))
        status, output = self.inside("c1", "dd", "if=/dev/urandom", "of=/big", "bs=1M", "count=100")
        self.assertEqual(1, status)
        self.assertRegex(output, "quota exceeded|No space left")
        self.assertIn("1024", self.inside("c1", "sh", "-c", "grep 'Max open files' /proc/1/limits")[1])
        _, group = self.inside("c1", "cat", "/proc/1/cgroup")
        path = next(line.rpartition(":")[2] for line in group.splitlines() if ":memory:" in line)
        _, limit = self.inside("c1", "sh", "-c", f"cat /sys/fs/cgroup/memory{path}/memory.limit_in_bytes "
                                                 "/sys/fs/cgroup/memory/memory.limit_in_bytes 2>/dev/null; true")
        self.assertTrue(limit == "" or str(96 * MiB) in limit, limit)

    def test_memory_is_not_more_than_asked(self):
        self.running(memory=Memory(32 * MiB))
        hog = "x=$(head -c 67108864 /dev/zero | tr '\\0' a); echo survived"
        status, output = self.inside("c1", "sh", "-c", hog)
        self.assertNotEqual(0, status)
        self.assertNotIn("survived", output)
        self.assertThat(self.engine.metrics("c1").memory_peak, LessThanOrEqual(32 * MiB))

    def test_each_container_has_ids_of_its_own(self):
        self.running("c1")
        self.running("c2")
        maps = {self.inside(name, "cat", "/proc/self/uid_map")[1].split()[1] for name in ("c1", "c2")}
        self.assertEqual(2, len(maps))

    def test_unprivileged_by_default_and_privileged_when_told(self):
        self.running("c1")
        self.running("c2", security=Security(privileged=True))
        first = {name: self.inside(name, "cat", "/proc/self/uid_map")[1].split()[1] for name in ("c1", "c2")}
        self.assertEqual("0", first["c2"])
        self.assertNotEqual("0", first["c1"])

    def test_mounts_and_cloud_init_arrive(self):
        source = self.lxd.daemon.base / "drive"
        source.mkdir(exist_ok=True)
        (source / "meta").write_text("hello\n")
        self.running(mounts=(Mount("config-drive", str(source), "/config-drive"),),
                     cloud_init=CloudInit(meta_data="instance-id: x\n", user_data="#cloud-config\n{}\n"))
        self.assertEqual((0, "hello\n"), self.inside("c1", "cat", "/config-drive/meta"))
        self.assertNotEqual(0, self.inside("c1", "touch", "/config-drive/more")[0])
        instance, _ = self.engine.client.instance("c1")
        self.assertEqual(["#cloud-config\n{}\n"], [value for key, value in instance["config"].items()
                                                   if key.endswith(".user-data")])
