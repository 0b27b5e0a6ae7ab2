# SPDX-License-Identifier: Apache-2.0
from typing import Any

import testtools

from containerhost.engines.lxd import config, live
from containerhost.engines.lxd.live import Target
from containerhost.engines.spec import Cpu, Memory, RootDisk, Security
from tests.unit.containerhost.engines.test_lxd_config import NEW, OLD, GiB, container, gpu_grant, vf_grant

LIBRARIES = {"nvidia.runtime": "true", "nvidia.driver.capabilities": "compute,utility"}


def instance(**more: Any) -> dict[str, Any]:
    """As LXD describes a container with this specification that runs."""
    body = config.instance(container(**more), OLD)
    return body | {"config": body["config"] | {"volatile.idmap.base": "1000000", "image.os": "busybox"},
                   "devices": body["devices"] | {"nic-eth0": {"type": "nic"}, "mount-config": {"type": "disk"}}}


def target(**more: Any) -> Target:
    spec = container(**more)
    return Target(live.live_keys(config.instance_config(spec, OLD)), config.root_disk(spec.root),
                  config.devices_of_all(spec.grants, OLD))


class StepsTest(testtools.TestCase):
    def test_memory_alone(self) -> None:
        before = instance(cpu=Cpu(1), memory=Memory(GiB, {2 << 20: GiB}))
        after = live.memory(before, target(cpu=Cpu(4), memory=Memory(2 * GiB)))
        self.assertEqual((str(2 * GiB), "1"), (after["config"]["limits.memory"], after["config"]["limits.cpu"]))
        self.assertNotIn("limits.hugepages.2MB", after["config"])
        self.assertEqual(before["devices"], after["devices"])

    def test_limits_and_the_root_disk_and_nothing_of_the_engines_own(self) -> None:
        before = instance(cpu=Cpu(2, frozenset({0, 1}), share=100))
        after = live.limits(before, target(cpu=Cpu(4, frozenset({2, 3})), root=RootDisk("fast", 20 * GiB)))
        self.assertEqual("2-3", after["config"]["limits.cpu"])
        self.assertNotIn("limits.cpu.allowance", after["config"])
        self.assertEqual("1000000", after["config"]["volatile.idmap.base"])
        self.assertEqual(str(20 * GiB), after["devices"]["root"]["size"])
        self.assertEqual(before["devices"].keys(), after["devices"].keys())

    def states(self, before: dict[str, Any], wanted: Target, kept: Any = None) -> list[dict[str, Any]]:
        """Return what is written, one after another."""
        found = [before]
        for step in live.steps(before, wanted, wanted.granted if kept is None else kept):
            found.append(step(found[-1]))
        return found[1:]

    def test_nothing_to_do(self) -> None:
        same: dict[str, Any] = {"parts": (gpu_grant(),), "labels": {"nova.uuid": "1"}}
        self.assertEqual([], self.states(instance(**same), target(**same)))

    def test_a_device_and_what_is_told_of_it_at_once(self) -> None:
        bare: dict[str, Any] = {"labels": {"told": "nothing"}}
        equipped: dict[str, Any] = {"labels": {"told": "all"}, "parts": (gpu_grant(), vf_grant())}
        for what, old, new, step in (("they come", bare, equipped, 1), ("they go", equipped, bare, -1)):
            with self.subTest(what):
                before, after = instance(**old), instance(**new)
                first, *_, last = states = self.states(before, target(**new))
                one_by_one = range(len(before["devices"]) + step, len(after["devices"]) + step, step)
                self.assertEqual(list(one_by_one), [len(state["devices"]) for state in states])
                self.assertEqual(old["labels"]["told"], first["config"]["user.told"])
                self.assertEqual(after, last)

    def test_memory_first_and_what_goes_before_what_comes(self) -> None:
        before = instance(cpu=Cpu(1), memory=Memory(GiB), parts=(gpu_grant(),))
        first, second, *_, last = self.states(before, target(cpu=Cpu(2), memory=Memory(2 * GiB), parts=(vf_grant(),)))
        self.assertEqual((str(2 * GiB), "1"), tuple(first["config"][key] for key in ("limits.memory", "limits.cpu")))
        self.assertEqual(("2", before["devices"]), (second["config"]["limits.cpu"], second["devices"]))
        self.assertNotIn("gpu-0000-3b-00-0", last["devices"])

    def test_limit_of_processes(self) -> None:
        (after,) = self.states(instance(processes=100), target(processes=200))
        self.assertEqual("200", after["config"]["limits.processes"])

    def test_marks_alone(self) -> None:
        (after,) = self.states(instance(labels={"old": "x"}), target(labels={"new": "y"}))
        self.assertEqual((None, "y"), (after["config"].get("user.old"), after["config"].get("user.new")))

    def test_all_anew(self) -> None:
        before, wanted = instance(parts=(gpu_grant(),)), target(parts=(gpu_grant(),))
        gone, back = self.states(before, wanted, kept={})
        self.assertNotIn("gpu-0000-3b-00-0", gone["devices"])
        self.assertEqual(before, back)

    def test_how_it_was_started_stays(self) -> None:
        before = instance(parts=(gpu_grant(frozenset({"compute", "utility"})),), security=Security(nesting=True))
        after = live.limits(before, target())
        self.assertEqual(LIBRARIES | {"security.nesting": "true"}, {
            key: after["config"][key] for key in (*LIBRARIES, "security.nesting")})


class ObstaclesTest(testtools.TestCase):
    def obstacles(self, present: dict[str, str], extensions: frozenset[str] = OLD, **more: Any) -> str:
        return "; ".join(live.obstacles(present, config.instance_config(container(**more), extensions)))

    def test_limits_and_devices_are_none(self) -> None:
        self.assertEqual("", self.obstacles(instance()["config"], cpu=Cpu(8), memory=Memory(8 * GiB),
                                            parts=(gpu_grant(), vf_grant())))

    def test_security_takes_effect_at_the_start(self) -> None:
        self.assertIn("security.nesting=true", self.obstacles(instance()["config"], security=Security(nesting=True)))

    def test_what_comes_at_the_start_only(self) -> None:
        cdi = {"type": "gpu", "gputype": "physical", "id": "nvidia.com/gpu=GPU-1"}
        plain = {"type": "gpu", "gputype": "physical", "pci": "0000:3b:00.0"}
        for name, present, wanted, extensions, words in (
                ("by address", {}, {"gpu-2": plain}, OLD, ""), ("goes", {"gpu-2": plain}, {}, OLD, ""),
                ("by CDI", {}, {"gpu-1": cdi}, NEW, "gpu_cdi_hotplug"), ("goes", {"gpu-1": cdi}, {}, NEW, ""),
                ("hot by CDI", {}, {"gpu-1": cdi}, NEW | {"gpu_cdi_hotplug"}, ""),
                ("others'", {"nic-eth0": {"type": "nic"}}, {}, OLD, "")):
            with self.subTest(name):
                found = "; ".join(live.device_obstacles(present, wanted, extensions))
                self.assertEqual(bool(words), bool(found))
                self.assertIn(words, found)

    def test_libraries_must_be_there(self) -> None:
        parts = (gpu_grant(frozenset({"utility"})),)
        for present, free in (({}, False), ({"nvidia.runtime": "true", "nvidia.driver.capabilities": "compute"}, False),
                              ({"nvidia.driver.capabilities": "compute,utility"}, False), (LIBRARIES, True)):
            with self.subTest(present):
                found = self.obstacles(instance()["config"] | present, parts=parts)
                self.assertEqual(free, not found)
        self.assertEqual("", self.obstacles(instance()["config"], NEW, parts=parts), "CDI brings them")
