# SPDX-License-Identifier: Apache-2.0
"""The commands of the documentation about one host, each page on an emulated host of its own (``tools/fakehost``)."""

import os
import subprocess
import sys
from pathlib import Path

import testtools

from tests import levels
from tests.manual import execute, marks, pages

# Changes by the commands end with the page: they are in memory, over the directories of this machine.
DIRECTORIES = ("/etc", "/usr", "/opt", "/root", str(pages.ROOT))
BIN = Path(sys.executable).parent
TIMEOUT = 300  # s for a page
ALWAYS = "quickstart.md"
# No systemd and no PyPI are on an emulated host.
ENVIRONMENT = {"PATH": f"{BIN}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root",
               "LANG": "C.UTF-8", "SYSTEMD_OFFLINE": "1", "PIP_NO_INDEX": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1",
               "PIP_FIND_LINKS": str(pages.ROOT / ".cache/wheels"), "COLUMNS": "1000"}
# The environment that the commands of the project are installed in: the one of these tests. A directory that was
# entered before its changes were kept apart is the one below.
PRELUDE = f"cd {pages.ROOT}; ln -s {sys.prefix} /opt/nova\n"


def on_host(host: str, script: str) -> str:
    done = subprocess.run((pages.ROOT / "tools/fakehost", "--host", host, "--", pages.ROOT / "tools/overlay",
                           *DIRECTORIES, "--", "bash", "-s"),
                          input=script, cwd=pages.ROOT, env={**os.environ, **ENVIRONMENT}, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, timeout=TIMEOUT, check=False)
    return done.stdout


class HostsTest(testtools.TestCase):
    def test_every_page_on_its_host(self) -> None:
        done, bad = 0, []
        for path in filter(self.is_chosen, pages.pages()):
            blocks = pages.blocks(path)
            for host in marks.environments():
                if found := execute.steps(blocks, host):
                    done += len(found)
                    bad += execute.complaints(found, lambda script, host=host: on_host(host, script), PRELUDE)
        self.assertEqual("", "\n".join(bad))
        self.assertGreater(done, levels.budget(gate=5, exhaustive=30))

    @staticmethod
    def is_chosen(page: Path) -> bool:
        return page.name == ALWAYS or levels.chosen(f"commands of {page.name}")
