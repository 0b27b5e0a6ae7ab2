# SPDX-License-Identifier: Apache-2.0
"""Test what examples/slurm writes and decides, and how the demo compares what its jobs see."""

import importlib.util
from types import ModuleType

import testtools

from hpcjob import job as jobs
from tools.showcase import slurm

RANK_MAP = "0 0 slurm-1a-0 10.0.0.1\n1 0 slurm-1a-1 10.0.0.2\n"
GPU = {"kind": "gpu", "nodes": ["/dev/nvidia1", "/dev/nvidiactl"]}
FUNCTION = {"kind": "net", "nodes": ["/dev/infiniband/uverbs3"]}
ETHERNET = {"kind": "net", "nodes": []}
OWN = {"one": {"/dev/nvidia0"}, "two": {"/dev/nvidia1"}}
OUTPUT = "one gpu=0 nic=mlx4_0 /dev/nvidia0 /dev/nvidiactl\nsrun: said\ntwo gpu=0 nic=mlx4_0 /dev/nvidia1\n"


def loaded(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, slurm.EXAMPLES / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class MemberTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.member = loaded("member")

    def test_nodes_and_controller(self) -> None:
        lines = self.member.slurm_conf(RANK_MAP, 2, [GPU, FUNCTION, ETHERNET]).splitlines()
        for line in ("ClusterName=slurm-1a", "SlurmctldHost=slurm-1a-0", "SuspendExcNodes=slurm-1a-0",
                     "NodeName=slurm-1a-0 NodeAddr=10.0.0.1 CPUs=2 Gres=gpu:1,nic:1",
                     "NodeName=slurm-1a-1 NodeAddr=10.0.0.2 CPUs=2 Gres=gpu:1,nic:1"):
            self.assertIn(line, lines)

    def test_nodes_without_devices(self) -> None:
        lines = self.member.slurm_conf(RANK_MAP, 1, [ETHERNET]).splitlines()
        self.assertIn("NodeName=slurm-1a-1 NodeAddr=10.0.0.2 CPUs=1", lines)

    def test_devices_are_numbered_from_0(self) -> None:
        text, links = self.member.gres_conf([GPU, FUNCTION, ETHERNET, {"kind": "gpu-slice", "nodes": ["/dev/nvidia2"]}])
        self.assertEqual(["Name=gpu File=/run/slurm/devices/gpu0", "Name=gpu File=/run/slurm/devices/gpu1",
                          "Name=nic File=/run/slurm/devices/nic0"], text.splitlines())
        self.assertEqual("/dev/nvidia1", links["/run/slurm/devices/gpu0"])

    def test_key_of_munge_is_neither_the_secret_nor_another_job_s(self) -> None:
        key = self.member.munge_key(b"secret")
        self.assertEqual(128, len(key))
        self.assertNotIn("secret", key)
        self.assertNotEqual(key, self.member.munge_key(b"other"))


class ScaleTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.scale = loaded("scale")

    def decided(self, state: str, status: str) -> str | None:
        return self.scale.decide(f"first   idle   \nsecond   {state}   \n", {"second": status}).get("second")

    def test_server_follows_node(self) -> None:
        for state, status, action in (
                ("idle", "ACTIVE", None), ("mixed+drain", "ACTIVE", None),
                ("idle+powering_down", "ACTIVE", "shelve"), ("idle+powered_down", "ACTIVE", "shelve"),
                ("idle+powered_down", "SHELVED_OFFLOADED", None),
                ("allocated+not_responding+powering_up", "SHELVED_OFFLOADED", "unshelve"),
                ("allocated+powering_up", "ACTIVE", None), ("allocated+powering_up", "SHELVED", None),
                ("idle+powered_down", "ERROR", None)):
            self.assertEqual(action, self.decided(state, status), (state, status))

    def test_server_that_is_busy_or_gone_is_left(self) -> None:
        self.assertEqual({}, self.scale.decide("first idle+powered_down", {}))
        self.assertEqual({}, self.scale.decide("", {"first": "ACTIVE"}))


class StoryTest(testtools.TestCase):
    def test_example_is_a_job(self) -> None:
        example = jobs.parse((slurm.EXAMPLES / "job.yaml").read_text())
        self.assertEqual({"image": slurm.IMAGE, "flavor": slurm.FLAVOR, "key_name": slurm.KEY},
                         {key: example.cloud("openstack")[key] for key in ("image", "flavor", "key_name")})

    def exact(self, output: str) -> bool:
        return slurm.exact(slurm.seen(output), OWN, OWN["one"] | OWN["two"])

    def test_tasks_with_their_own_devices(self) -> None:
        self.assertTrue(self.exact(OUTPUT))

    def test_tasks_with_others_devices_or_none(self) -> None:
        for output in ("", OUTPUT.replace("/dev/nvidia1", "/dev/nvidia0"), OUTPUT.replace(" /dev/nvidia1", ""),
                       OUTPUT.replace("/dev/nvidiactl", "/dev/nvidia1"), OUTPUT.replace("gpu=0", "gpu="),
                       OUTPUT.replace("nic=mlx4_0", "nic="), OUTPUT.replace("two", "one"), OUTPUT + OUTPUT.replace(
                           "two", "three")):
            self.assertFalse(self.exact(output), output)
