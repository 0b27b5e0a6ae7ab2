# SPDX-License-Identifier: Apache-2.0
"""The specification that container engines read is valid, complete, and written only when it changes."""

import dataclasses
import json
import os
import re
from pathlib import Path
from typing import Any

import fixtures
import jsonschema
import referencing
import testtools
from click.testing import CliRunner
from referencing.jsonschema import DRAFT7

from containerhost.devices.model import NodeUse
from containerhost.inventory.scan import scan
from containerhost.operator.cli import main
from containerhost.operator.runtimes import cdi
from tests.unit.containerhost.hosts import Broken, shared

SCHEMA = Path(__file__).parent / "cdi_schema"
# SPEC.md, "CDI JSON Specification": letters, digits, underscore, dash, dot, colon; first and last a letter or digit.
DEVICE_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?")
KIND = re.compile(r"[A-Za-z]([A-Za-z0-9_.-]*[A-Za-z0-9])?/[A-Za-z]([A-Za-z0-9_-]*[A-Za-z0-9])?")


def validator() -> jsonschema.Draft7Validator:
    definitions = DRAFT7.create_resource(json.loads((SCHEMA / "defs.json").read_text()))
    registry = referencing.Registry().with_resource("defs.json", definitions)
    return jsonschema.Draft7Validator(json.loads((SCHEMA / "schema.json").read_text()), registry=registry)


def nodes(found: dict[str, Any]) -> dict[str, list[str]]:
    return {each["name"]: [node["path"] for node in each["containerEdits"]["deviceNodes"]] for each in found["devices"]}


class SpecificationTest(testtools.TestCase):
    def test_matches_the_published_schema(self) -> None:
        for host in ("small", "mixed"):
            found = cdi.specification(scan(shared(host)).devices)
            validator().validate(found)
            self.assertRegex(found["kind"], KIND)
            for each in found["devices"]:
                self.assertTrue(DEVICE_NAME.fullmatch(each["name"]), each["name"])
        self.assertRaises(jsonschema.ValidationError, validator().validate,
                          {"cdiVersion": "0.5.0", "kind": "a/b", "devices": [{"name": "x", "containerEdits": {
                              "deviceNodes": [{"major": 1}]}}]})

    def test_has_what_containers_can_have(self) -> None:
        inventory = scan(shared("mixed"))
        found = nodes(cdi.specification(inventory.devices))
        self.assertEqual(["/dev/infiniband/uverbs1", "/dev/infiniband/rdma_cm"], found["0000:5e:00.1"])
        self.assertIn("/dev/nvidia1", found["0000:3c:00.0_gi1_ci0"])
        self.assertNotIn("0000:3c:00.0", found, "a GPU that is cut")
        self.assertNotIn("0000:5e:00.0", found, "the host's own card")
        management = {node.path for device in inventory.devices for node in device.nodes
                      if node.use is NodeUse.MANAGEMENT}
        self.assertTrue(management)
        self.assertEqual(set(), management & {path for paths in found.values() for path in paths})

    def test_sick_device_has_no_name(self) -> None:
        devices = [dataclasses.replace(device, health=("fell off the bus",)) if device.id == "0000:3b:00.0" else device
                   for device in scan(shared("small")).devices]
        self.assertNotIn("0000:3b:00.0", nodes(cdi.specification(devices)))

    def test_no_device_is_no_specification(self) -> None:
        self.assertIsNone(cdi.specification(()))


class CommandTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.tree = self.useFixture(Broken("small"))
        self.file = Path(self.useFixture(fixtures.TempDir()).path) / "cdi" / "containerhost.json"

    def cdi(self, *arguments: str) -> str:
        done = CliRunner().invoke(main, ["cdi", "--root", str(self.tree.root), *arguments])
        self.assertEqual(0, done.exit_code, done.output)
        return done.output

    def write(self) -> str:
        return self.cdi("--output", str(self.file)).strip()

    def test_written_once_and_again_when_a_driver_changes(self) -> None:
        self.assertEqual(f"{self.file}: written", self.write())
        first = self.file.stat()
        self.assertEqual(0o100644, first.st_mode)
        self.assertEqual(f"{self.file}: unchanged", self.write())
        self.assertEqual((first.st_ino, first.st_mtime_ns), (self.file.stat().st_ino, self.file.stat().st_mtime_ns))
        self.tree.rebind("0000:af:00.0", "vfio-pci")
        self.assertEqual(f"{self.file}: written", self.write())
        self.assertNotIn("0000:af:00.0", nodes(json.loads(self.file.read_text())))

    def test_half_written_file_is_replaced(self) -> None:
        whole = self.cdi("--json")
        self.file.parent.mkdir()
        self.file.write_text(whole[:40])
        self.assertEqual(f"{self.file}: written", self.write())
        self.assertEqual(json.loads(whole), json.loads(self.file.read_text()))
        self.assertEqual([self.file], list(self.file.parent.iterdir()))

    def test_device_is_neither_replaced_nor_removed(self) -> None:
        self.file.parent.mkdir()
        os.mkfifo(self.file)
        reader = os.open(self.file, os.O_RDWR | os.O_NONBLOCK)
        self.addCleanup(os.close, reader)
        self.assertEqual(f"{self.file}: written", self.write())
        self.assertEqual(json.loads(self.cdi("--json")), json.loads(os.read(reader, 1 << 16)))
        self.assertEqual("unchanged", cdi.write(self.file, None))
        self.assertTrue(self.file.is_fifo())

    def test_removed_with_the_last_device(self) -> None:
        self.write()
        self.assertEqual("removed", cdi.write(self.file, None))
        self.assertEqual("unchanged", cdi.write(self.file, None))
        self.assertFalse(self.file.exists())

    def test_what_cannot_be_written_is_said(self) -> None:
        self.file.parent.write_text("")
        done = CliRunner().invoke(main, ["cdi", "--root", str(self.tree.root), "--output", str(self.file)])
        self.assertEqual((1, f"Error: {self.file} cannot be written: Not a directory\n"), (done.exit_code, done.output))

    def test_table_names_every_device(self) -> None:
        lines = self.cdi().splitlines()
        self.assertEqual(7, len(lines))
        self.assertIn("containerhost/device=0000:5e:00.1  infiniband/uverbs1 infiniband/rdma_cm", lines)
