# SPDX-License-Identifier: Apache-2.0
"""A host that is drawn: two sockets, switches, containers with cores and devices, a sick GPU and a blocked one."""

import dataclasses
import json
import os
import re
import sys
from pathlib import Path
from unittest import mock
from xml.etree import ElementTree

import fixtures
import testtools
from click.testing import CliRunner, Result

from containerhost.allocation.store import AllocationStore
from containerhost.devices.model import Kind
from containerhost.linux.process.pins import pins
from containerhost.linux.sysfs import Host
from containerhost.operator.cli import main
from containerhost.operator.drawing import svg, text
from containerhost.operator.drawing.hostmap import Card, HostMap, Status, way_up
from containerhost.operator.drawing.hostreader import read_map
from tests.unit.containerhost.hosts import MEMORY, Broken, shared
from tools.showcase import picture

TEXT = "{http://www.w3.org/2000/svg}text"
RECT = "{http://www.w3.org/2000/svg}rect"


class Busy(fixtures.Fixture):
    """The host of the manual's picture."""

    def _setUp(self) -> None:
        self.root = Path(self.useFixture(fixtures.TempDir(rootdir=MEMORY)).path) / "host"
        picture.make(self.root)
        self.host = Host(self.root)

    def map(self) -> HostMap:
        return read_map(self.host, AllocationStore(self.root / "var/lib/containerhost/owners").records())


def cards(drawn: HostMap) -> dict[str, Card]:
    return {card.id: card for node in drawn.nodes for group in node.groups for card in group.cards}


def words(content: bytes) -> list[str]:
    return [found.text or "" for found in ElementTree.fromstring(content).iter(TEXT)]


class MapTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.busy = self.useFixture(Busy())
        self.drawn = self.busy.map()

    def test_cards_are_below_their_switches(self) -> None:
        first = self.drawn.nodes[0].groups
        self.assertEqual([("0000:16:00.0", ("0000:1b:00.0", "0000:18:00.0")),
                          ("0000:3e:00.0", ("0000:43:00.0", "0000:40:00.0"))],
                         [(group.switch, tuple(card.id for card in group.cards)) for group in first[:2]])
        self.assertEqual((None, "0000:29"), (first[-1].switch, first[-1].bridge))

    def test_who_has_what(self) -> None:
        found = cards(self.drawn)
        self.assertEqual((Status.HELD, "train-0"), (found["0000:1b:00.0"].status, found["0000:1b:00.0"].owner))
        self.assertEqual(Status.SICK, found[picture.SICK].status)
        self.assertEqual((Status.BLOCKED, ("blocked: process 4711 has it open",)),
                         (found[picture.BLOCKED].status, found[picture.BLOCKED].trouble))
        functions = {part.id: part.owner for part in found["0000:ce:00.0"].parts}
        self.assertEqual(8, len(functions))
        self.assertEqual(["mpi-rank-0", "mpi-rank-0"], [owner for owner in functions.values() if owner])
        self.assertEqual(("inference", "mpi-rank-0", "train-0", "train-1"), self.drawn.owners)

    def test_cores_and_who_is_pinned_to_them(self) -> None:
        cores = self.drawn.nodes[0].cores
        self.assertEqual(56, len(cores))
        self.assertEqual(((0, "train-0"), (112, "train-0")), cores[0].threads)
        self.assertEqual(((28, "train-1"), (140, "train-1")), cores[28].threads)
        self.assertEqual({None}, {owner for core in self.drawn.nodes[1].cores[20:] for _, owner in core.threads})

    def test_parts_of_a_gpu_and_devices_of_no_node(self) -> None:
        tree = self.useFixture(Broken("mixed"))
        (tree.function("0000:3c:00.0") / "numa_node").write_text("-1\n")
        drawn = read_map(tree.host, {})
        self.assertEqual([0, 1, None], [node.id for node in drawn.nodes])
        self.assertEqual(["gi1/ci0", "gi2/ci0", "gi5/ci0", "gi5/ci1"],
                         [part.label for part in cards(drawn)["0000:3c:00.0"].parts])

    def test_every_device_is_drawn_once(self) -> None:
        for name in ("small", "mixed", "dgx", "broken", "fabrics"):
            found = cards(read_map(shared(name), {})).values()
            ids = [card.id for card in found] + [part.id for card in found for part in card.parts]
            listed = json.loads(run("list", "--json", "--root", str(shared(name).root)).output)
            self.assertEqual(sorted(device["id"] for device in listed), sorted(ids), name)

    def test_way_up(self) -> None:
        root = "/sys/devices/pci0000:16/0000:16:01.0"
        for directory, expected in ((f"{root}/0000:17:00.0/0000:18:00.0/0000:1b:00.0", ("0000:16", "0000:17:00.0")),
                                    (f"{root}/0000:17:00.0", ("0000:16", None)),
                                    ("/sys/devices/pci0000:16/0000:16:00.0", ("0000:16", None)), ("", ("", None))):
            self.assertEqual(expected, way_up(directory))


class PinsTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.tree = self.useFixture(Broken("small"))

    def test_containers_of_every_engine_and_version(self) -> None:
        docker = "ab" * 32
        for group, cores in (("lxc.payload.one", "0-3"), ("cpuset/lxc.payload.two", "4"), ("lxc/three", "5"),
                             (f"system.slice/docker-{docker}.scope", "6"), (f"cpuset/docker/{'cd' * 32}", "7"),
                             ("lxc.payload.free", ""), ("lxc.payload.all", "0-31"), ("lxc.payload.odd", "x-"),
                             ("init.scope", "0"), ("system.slice/ssh.service", "0")):
            self.tree.write(f"/sys/fs/cgroup/{group}/cpuset.cpus", f"{cores}\n")
        self.assertEqual({"one": frozenset(range(4)), "two": frozenset({4}), "three": frozenset({5}),
                          docker[:12]: frozenset({6}), "cd" * 6: frozenset({7})}, pins(self.tree.host))


class SvgTest(testtools.TestCase):
    def test_picture_tells_everything(self) -> None:
        busy = self.useFixture(Busy())
        found = words(svg.draw(busy.map()))
        for expected in ("NUMA node 0, socket 0, 1024 GiB", "PCIe switch 0000:16:00.0", "NVIDIA H100 80GB HBM3",
                         "train-0", "blocked: process 4711 has it open", "0000:18:00.0 · mlx5_0 · active", "VF 7",
                         "host bridge 0000:29"):
            self.assertIn(expected, found)
        self.assertEqual(4 * 2 * 8 + 2, sum(word.startswith("VF") for word in found))

    def test_names_that_nova_gives_containers_are_not_cut(self) -> None:
        node = read_map(shared("small"), {}).nodes[0]
        card = dataclasses.replace(node.groups[0].cards[0], owner="instance-0000002a", status=Status.HELD)
        group = dataclasses.replace(node.groups[0], cards=(card,))
        content = svg.draw(HostMap("", (dataclasses.replace(node, groups=(group,), cores=()),)))
        self.assertEqual(2, words(content).count("instance-0000002a"))  # in the legend and on the card

    def test_nothing_lies_outside(self) -> None:
        hosts = (read_map(shared(name), {}) for name in ("small", "mixed", "broken"))
        for drawn in (self.useFixture(Busy()).map(), *hosts):
            root = ElementTree.fromstring(svg.draw(drawn))
            width, height = float(root.attrib["width"]), float(root.attrib["height"])
            for shape in root.iter(RECT):
                if "x" in shape.attrib:
                    self.assertLessEqual(float(shape.attrib["x"]) + float(shape.attrib["width"]), width)
                    self.assertLessEqual(float(shape.attrib["y"]) + float(shape.attrib["height"]), height)

    def test_names_are_text_and_never_markup(self) -> None:
        drawn = read_map(shared("small"), {})
        node = drawn.nodes[0]
        evil = "</text><script>alert(1)</script>\x1b\x00&\"'"
        card = dataclasses.replace(node.groups[0].cards[0], title=evil, owner=evil, status=Status.HELD, trouble=(evil,),
                                   links=((evil, 2),))
        group = dataclasses.replace(node.groups[0], cards=(card,), switch=evil)
        content = svg.draw(HostMap(evil, (dataclasses.replace(node, groups=(group,)),)))
        root = ElementTree.fromstring(content)
        self.assertEqual({"svg", "rect", "text", "title"}, {found.tag.rpartition("}")[2] for found in root.iter()})
        self.assertIsNone(re.search(rb"[\x00-\x08\x0b\x0c\x0e-\x1f]", content))
        self.assertIn(b"&lt;script&gt;", content)

    def test_long_text_is_cut(self) -> None:
        self.assertEqual("abcdefg…", svg.fitted("abcdefghijklm", 10, 50))
        self.assertEqual("abc", svg.fitted("abc", 10, 50))

    def test_links_between_gpus(self) -> None:
        drawn = read_map(shared("small"), {})
        card = next(card for card in cards(drawn).values() if card.kind is Kind.GPU)
        linked = dataclasses.replace(card, links=(("0000:af:00.0", 12),))
        group = dataclasses.replace(drawn.nodes[0].groups[0], cards=(linked,))
        node = dataclasses.replace(drawn.nodes[0], groups=(group,))
        self.assertIn("linked to 0000:af:00.0 (12)", words(svg.draw(HostMap("", (node,)))))
        self.assertIn("(12 links to 0000:af:00.0)", text.write(HostMap("", (node,))))


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


class CommandCase(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.busy = self.useFixture(Busy())
        self.directory = Path(self.useFixture(fixtures.TempDir()).path)

    def topology(self, *arguments: str) -> Result:
        return run("topology", *arguments, "--root", str(self.busy.root))


class CommandTest(CommandCase):
    def test_text(self) -> None:
        lines = self.topology("--text").output.splitlines()
        self.assertIn("NUMA node 0, socket 0, 1024 GiB", lines)
        self.assertIn("├─ PCIe switch 0000:16:00.0", lines)
        self.assertIn("│  ├─ GPU NVIDIA H100 80GB HBM3, 0000:1b:00.0: train-0", lines)
        self.assertIn("│  ├─ train-0: 0-27,112-139", lines)
        self.assertIn("│     ├─ VF 0 0000:18:00.1: train-0", lines)

    def test_svg(self) -> None:
        file = self.directory / "host.svg"
        done = self.topology("--svg", str(file))
        self.assertEqual((0, ""), (done.exit_code, done.output))
        self.assertEqual(0o644, os.stat(file).st_mode & 0o777)
        self.assertIn("train-0", words(file.read_bytes()))

    def test_png_without_the_library(self) -> None:
        file = self.directory / "host.png"
        with mock.patch.dict(sys.modules, {"cairosvg": None}):
            done = self.topology("--png", str(file))
        self.assertEqual(1, done.exit_code)
        self.assertIn("nova-lxd-ext[picture]", done.stderr)
        self.assertFalse(file.exists())

    def test_records_that_cannot_be_read(self) -> None:
        next((self.busy.root / "var/lib/containerhost/owners").glob("*.json")).write_text("{")
        done = self.topology("--text")
        self.assertEqual(0, done.exit_code)
        self.assertIn("owners are not shown", done.stderr)
