# SPDX-License-Identifier: Apache-2.0
import importlib.metadata
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import testtools
from nova import exception
from nova.api.validation.extra_specs import base
from nova.objects.image_meta import ImageMetaProps

from nova_lxd_ext import validators
from nova_lxd_ext.access import password

ROOT = Path(__file__).parents[3]
IMAGE_KEY = re.compile(r"""image(?:_meta)?\.properties(?:\.get\("|\.|\[")(?!get\b)(\w+)""")
JSON_TYPES = {bool: "boolean", int: "integer", str: "string"}
LIMITS = ("type", "minimum", "maximum", "enum", "pattern")

BY_NAME = {validator.name: validator for validator in validators.register()}


class ValidatorsTest(testtools.TestCase):
    def test_values_the_api_accepts_and_refuses(self) -> None:
        booleans = (("true", "False", "1", "no"), ("", "maybe", "2"))
        table = {
            "lxd:nested_allowed": booleans,
            "lxd:privileged_allowed": booleans,
            "lxd:isolated": booleans,
            "lxd:gpu_capabilities": (("none", "compute", "compute,utility,ngx"),
                                     ("", "all", "compute,", "compute utility", "none,compute", "compute\n")),
            "lxd:process_limit": (("1", "16384"), ("", "0", "-1", "many", "1.5")),
            "lxd:vf_max_tx_rate": (("1", "25000"), ("", "0", "-1", "1.5", "1 Gbit/s")),
            "hpc:affinity": (("any", "cpu", "cpumem", "cpumempin"), ("", "CPU", "none", "cpu,cpumem")),
            "hpc:shared_memory": (("1", "65536"), ("", "0", "-1", "1.5", "1 GiB")),
            "hpc:vcpus_min": (("1", "64"), ("", "0", "-1", "1.5", "1-4")),
            "hpc:vcpus_max": (("1", "64"), ("", "0", "-1", "1.5", "1-4")),
            "hpc:memory_min": (("16", "65536"), ("", "0", "15", "1.5", "1 GiB")),
            "hpc:memory_max": (("16", "65536"), ("", "0", "15", "1.5", "1 GiB")),
            "hpc:gpus_min": (("0", "1", "16"), ("", "-1", "1.5", "1-2")),
            "hpc:elastic_priority": (("0", "10"), ("", "11", "-1", "high")),
            "lxd:live_migration": (("restart", "refused"), ("", "true", "Restart", "restart,refused")),
            "lxd:live_resize": (("preferred", "required"), ("", "true", "Required", "required,preferred")),
        }
        self.assertEqual(table.keys(), BY_NAME.keys())
        for name, (good, bad) in table.items():
            for value in good:
                with self.subTest(name=name, value=value):
                    BY_NAME[name].validate(name, value)
            for value in bad:
                with self.subTest(name=name, value=value):
                    self.assertRaises(exception.ValidationError, BY_NAME[name].validate, name, value)

    def test_are_what_nova_loads(self) -> None:
        self.assertTrue(all(isinstance(validator, base.ExtraSpecValidator) for validator in BY_NAME.values()))
        points = importlib.metadata.entry_points(group="nova.api.extra_spec_validators", name="lxd")
        for point in points:  # none in a checkout that is not installed
            self.assertIs(validators, point.load())


class MetadefsTest(testtools.TestCase):
    """Test that what Horizon offers, by the metadata definitions in Glance, is what the API and the driver take."""

    def described(self, name: str, resource: str) -> dict[str, Any]:
        content = json.loads((ROOT / "etc/metadefs" / name).read_text())
        self.assertEqual([{"name": resource}], content["resource_type_associations"])
        self.assertTrue(all(entry["title"] and entry["description"] for entry in content["properties"].values()))
        return dict(content["properties"])

    def test_flavor_keys_and_their_values(self) -> None:
        described = self.described("compute-lxd.json", "OS::Nova::Flavor")
        self.assertEqual({name: schema(validator.value) for name, validator in BY_NAME.items()},
                         {name: {key: value for key, value in entry.items() if key in LIMITS}
                          for name, entry in described.items()})

    def test_defaults_are_values_the_api_accepts(self) -> None:
        for name, entry in self.described("compute-lxd.json", "OS::Nova::Flavor").items():
            if "default" in entry:
                BY_NAME[name].validate(name, str(entry["default"]))

    def test_image_keys_are_those_the_driver_reads(self) -> None:
        read = {name for path in (ROOT / "nova_lxd_ext").rglob("*.py") for name in IMAGE_KEY.findall(path.read_text())}
        described = self.described("compute-lxd-image.json", "OS::Glance::Image")
        self.assertEqual(read, described.keys())
        self.assertEqual(set(), read - ImageMetaProps.fields.keys())
        self.assertEqual(f"^{password.USER.pattern}$", described["os_admin_user"]["pattern"])

    def test_glance_takes_them(self) -> None:
        try:
            from glance.api.v2 import metadef_namespaces, metadef_properties
        except ImportError:
            self.skipTest("Glance is not installed: see demo-requirements.txt")
        for path in sorted((ROOT / "etc/metadefs").glob("*.json")):
            content = json.loads(path.read_text())
            namespace = {key: value for key, value in content.items()
                         if key not in ("properties", "resource_type_associations")}
            metadef_namespaces.get_schema().validate(namespace)
            for name, entry in content["properties"].items():
                metadef_properties.get_schema().validate({"name": name, **entry})


def schema(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return what Glance calls a validator's limits."""
    found = {"type": JSON_TYPES[value["type"]], "minimum": value.get("min"), "maximum": value.get("max"),
             "enum": value.get("enum"), "pattern": f"^({value['pattern']})$" if "pattern" in value else None}
    return {key: limit for key, limit in found.items() if limit is not None}
