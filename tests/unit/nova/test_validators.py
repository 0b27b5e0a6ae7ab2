# SPDX-License-Identifier: Apache-2.0
import importlib.metadata
import json
from pathlib import Path

import testtools
from nova import exception
from nova.api.validation.extra_specs import base

from nova_lxd_ext import validators

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

    def test_horizon_describes_every_key(self) -> None:
        described = json.loads((Path(__file__).parents[3] / "etc/metadefs/compute-lxd.json").read_text())
        self.assertEqual(BY_NAME.keys(), described["properties"].keys())
