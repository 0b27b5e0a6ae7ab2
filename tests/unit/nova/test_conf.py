# SPDX-License-Identifier: Apache-2.0
"""The sample of the options that operators copy."""

import re
from pathlib import Path

import testtools

from nova_lxd_ext import conf

SAMPLE = Path(__file__).resolve().parents[3] / "etc/nova/lxd.conf.sample"


class SampleTest(testtools.TestCase):
    def test_sample_has_every_option_with_its_default(self) -> None:
        """``tox -e genconfig`` writes it anew."""
        shown = dict(re.findall(r"^#(\w+) =(?: (.*))?$", SAMPLE.read_text(), re.MULTILINE))
        ((_, options),) = conf.list_opts()
        self.assertEqual({option.dest for option in options}, set(shown))
        for option in options:
            if isinstance(option.default, str | int) and not isinstance(option.default, bool):
                self.assertEqual(str(option.default), shown[option.dest], option.dest)
