# SPDX-License-Identifier: Apache-2.0
"""The map of a host as JSON: it comes back as it was, and nothing else comes back."""

import subprocess
import sys
from pathlib import Path

import testtools


class DocumentTest(testtools.TestCase):
    def test_standard_library_is_enough(self) -> None:
        """Horizon's host has this package without what it depends on."""
        subprocess.run([sys.executable, "-S", "-c", "from containerhost.operator.drawing import document, svg, text"],
                       cwd=Path(__file__).parents[5], check=True)
