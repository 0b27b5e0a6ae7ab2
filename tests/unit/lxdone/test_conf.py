# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import fixtures
import testtools

from lxdone import conf
from lxdone.conf import Options
from onedriver.node.options import BadOptions

SAMPLE = Path(__file__).parents[3] / "etc/lxdone.toml.sample"


class ConfTest(testtools.TestCase):
    def loaded(self, text: str) -> Options:
        path = Path(self.useFixture(fixtures.TempDir()).path) / "lxdone.toml"
        path.write_text(text)
        return conf.load(path)

    def test_no_file_is_all_defaults(self) -> None:
        self.assertEqual(Options(), conf.load(Path("/nonexistent/lxdone.toml")))
        self.useFixture(fixtures.EnvironmentVariable("LXDONE_CONF", "/nonexistent/lxdone.toml"))
        self.assertEqual(Options(), conf.load())

    def test_options(self) -> None:
        self.assertEqual(Options(storage_pool="fast", stop_timeout=5, allow_nesting=True, pci_filter=("10de:*:*",)),
                         self.loaded('storage_pool = "fast"\nstop_timeout = 5\nallow_nesting = true\n'
                                     'pci_filter = ["10de:*:*"]'))

    def test_the_sample_names_every_option_with_its_default(self) -> None:
        lines = [line.removeprefix("#") for line in SAMPLE.read_text().splitlines()
                 if line.startswith("#") and not line.startswith("# ")]
        self.assertEqual(Options(), self.loaded("\n".join(lines)))
        self.assertEqual(set(Options.__dataclass_fields__), {line.partition(" = ")[0] for line in lines})

    def test_what_is_no_option_is_refused(self) -> None:
        for text, words in (("allow_privilege = true", "no option allow_privilege"),
                            ("stop_timeout = true", "must be a int"), ("stop_timeout = 0", "1 or more"),
                            ('allow_nesting = "no"', "must be a bool"),
                            ('pci_filter = "*"', "a list of texts"), ("pci_filter = [1]", "a list of texts"),
                            ("= 1", "cannot be read")):
            self.assertIn(words, str(self.assertRaises(BadOptions, self.loaded, text)))
