# SPDX-License-Identifier: Apache-2.0
"""Slurm's configuration names every device that jobs can be given, in the order in which Slurm counts them."""

import dataclasses
import json

import testtools
from click.testing import CliRunner

from containerhost.errors import SpecError
from containerhost.inventory import topology
from containerhost.inventory.scan import scan
from containerhost.operator.cli import main
from containerhost.operator.runtimes import cdi
from containerhost.operator.slurm import config
from containerhost.vendors import make_grant
from tests.unit.containerhost.hosts import shared

FIRST, SECOND = "0000:3b:00.0", "0000:af:00.0"
SMALL = """\
# slurm.conf: GresTypes=gpu,nic
# slurm.conf: NodeName=n1 Gres=gpu:nvidia_a100-sxm4-40gb:2,nic:infiniband:4
NodeName=n1 Name=gpu Type=nvidia_a100-sxm4-40gb MultipleFiles=/dev/nvidia0,/dev/dri/card0,/dev/dri/renderD128 \
Cores=0-7  # 0000:3b:00.0
NodeName=n1 Name=gpu Type=nvidia_a100-sxm4-40gb MultipleFiles=/dev/nvidia1,/dev/dri/card1,/dev/dri/renderD129 \
Cores=8-15  # 0000:af:00.0
NodeName=n1 Name=nic Type=infiniband File=/dev/infiniband/uverbs1 Cores=0-7  # 0000:5e:00.1
NodeName=n1 Name=nic Type=infiniband File=/dev/infiniband/uverbs2 Cores=0-7  # 0000:5e:00.2
NodeName=n1 Name=nic Type=infiniband File=/dev/infiniband/uverbs4 Cores=8-15  # 0000:d8:00.1
NodeName=n1 Name=nic Type=infiniband File=/dev/infiniband/uverbs5 Cores=8-15  # 0000:d8:00.2
"""


class GresTest(testtools.TestCase):
    def run_gres(self, host: str, *options: str) -> str:
        done = CliRunner().invoke(main, ["slurm", "gres", "--root", str(shared(host).root), "--node", "n1", *options])
        self.assertEqual(0, done.exit_code, done.output)
        return done.output

    def test_small_host(self) -> None:
        self.assertEqual(SMALL, self.run_gres("small"))

    def test_json_has_the_same(self) -> None:
        found = json.loads(self.run_gres("small", "--json"))
        self.assertEqual(("n1", "gpu:nvidia_a100-sxm4-40gb:2,nic:infiniband:4"), (found["node"], found["gres"]))
        self.assertEqual([FIRST, SECOND, "0000:5e:00.1", "0000:5e:00.2", "0000:d8:00.1", "0000:d8:00.2"],
                         [each["device"] for each in found["devices"]])
        self.assertEqual(list(range(8)), found["devices"][0]["cores"])

    def test_types_are_together_and_in_the_order_of_slurm_conf(self) -> None:
        host = shared("mixed")
        found = config.gres(cdi.grants(scan(host).devices), topology.read(host), {})
        types = [f"{each.name}:{each.type}" for each in found]
        self.assertEqual([word.rpartition(":")[0] for word in config.counted(found).split(",")],
                         list(dict.fromkeys(types)))
        self.assertEqual(len(set(types)), sum(one != other for one, other in zip(types, ["", *types], strict=False)))
        self.assertNotIn("0000:3c:00.0", [each.device for each in found], "a GPU that is cut")

    def test_links_are_counted_in_the_order_of_the_gpus(self) -> None:
        host = shared("small")
        found = config.gres(cdi.grants(scan(host).devices), topology.read(host), {frozenset((FIRST, SECOND)): 12})
        self.assertEqual([(-1, 12), (12, -1), (), ()], [each.links for each in found][:4])
        self.assertIn(" Links=12,-1 ", config.gres_conf(found, "n1"))

    def test_type_is_one_word_without_a_model(self) -> None:
        inventory = scan(shared("small"))
        for model, expected in ((None, "10de-20b0"), (" Tesla, (V100)=x ", "tesla_v100_x")):
            gpu = dataclasses.replace(inventory.get(FIRST), model=model)
            found = config.gres([dataclasses.replace(make_grant(inventory.get(FIRST), cdi.GrantOptions()), device=gpu)],
                                topology.read(shared("small")), {})
            self.assertEqual(expected, found[0].type)

    def test_host_without_devices(self) -> None:
        self.assertEqual("# no device of this host has nodes", config.gres_conf((), "n1"))


class TopologyTest(testtools.TestCase):
    def run_topology(self, tree: str) -> list[str]:
        done = CliRunner().invoke(main, ["slurm", "topology"], input=tree)
        self.assertEqual(0, done.exit_code, done.output)
        return done.output.splitlines()

    def test_racks_and_switches(self) -> None:
        self.assertEqual(
            ["SwitchName=r1s1 Nodes=node2,node10", "SwitchName=r1s2 Nodes=node3", "SwitchName=r2s1 Nodes=node4",
             "SwitchName=r1 Switches=r1s1,r1s2", "SwitchName=r2 Switches=r2s1", "SwitchName=network Switches=r1,r2"],
            self.run_topology("node10 r1 r1s1\nnode2 r1 r1s1  # the second\n\nnode4 r2 r2s1\nnode3 r1 r1s2\n"))

    def test_switch_has_nodes_or_switches(self) -> None:
        self.assertEqual(
            ["SwitchName=r1-nodes Nodes=b", "SwitchName=s Nodes=a", "SwitchName=network-nodes Nodes=c",
             "SwitchName=r1 Switches=r1-nodes,s", "SwitchName=network Switches=network-nodes,r1"],
            self.run_topology("a r1 s\nb r1\nc\n"))

    def test_same_name_in_two_racks(self) -> None:
        self.assertEqual(["SwitchName=r1-s1 Nodes=a", "SwitchName=r2-s1 Nodes=b", "SwitchName=r1 Switches=r1-s1",
                          "SwitchName=r2 Switches=r2-s1", "SwitchName=network Switches=r1,r2"],
                         self.run_topology("a r1 s1\nb r2 s1\n"))

    def test_one_switch_needs_no_network_above_it(self) -> None:
        self.assertEqual(["SwitchName=s Nodes=a,b"], self.run_topology("a s\nb s\n"))
        self.assertEqual(["SwitchName=network Nodes=a,b"], self.run_topology("a\nb\n"))

    def test_what_is_no_tree_is_refused(self) -> None:
        for tree, words in (("a r1,Nodes=b", "is not a host followed by parts of the network"),
                            ("node[1-3] r1", "is not a host"),
                            ("a r1\na r2\n", "host a is in two places of the network: r1 and r2"),
                            ("a x-y z\nb x y-z\nc x-y w\nd u z\ne u y-z\nf x w", "two parts of the network")):
            self.assertIn(words, str(self.assertRaises(
                SpecError, lambda tree=tree: config.topology_conf(config.leaves(tree.splitlines())))))
