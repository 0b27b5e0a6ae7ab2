# SPDX-License-Identifier: Apache-2.0
"""Run the applications of examples/elastic in a container on LXD whose cores and devices change with notice.

Import the module, not its class: it would else be a test of the importing module.
"""

import dataclasses
import shutil
import subprocess
from pathlib import Path

from testtools.content import text_content

from containerhost.engines.lxd.live import Live
from containerhost.engines.spec import ContainerSpec, Mount
from containerhost.guest import guest, resources
from containerhost.guest.guestfiles import GuestFiles
from containerhost.guest.guestnotice import GuestNotice
from containerhost.privileged import Privileged
from tests.conformance.engine.frame import PYTHON
from tests.functional.containerhost.base import LxdTestCase
from tests.waiting import await_that

EXAMPLES = Path(__file__).resolve().parents[2] / "examples/elastic"
NOTICE_TIMEOUT = 60.0  # s; no test waits for its end
HELPER = "/usr/bin/python3 /tools/containerhost-guest"


def tools(directory: Path) -> Path:
    """Make a directory of the examples, compiled, and of the helper under both of its names."""
    if not directory.exists():
        shutil.copytree(EXAMPLES, directory)
        for name in ("containerhost-guest", "containerhost_guest.py"):
            shutil.copyfile(guest.__file__, directory / name)
        subprocess.run(["gcc", "-O2", "-Wall", "-Wextra", "-Werror", "-fopenmp", "openmp.c", "-o", "openmp"],
                       cwd=directory, check=True)
    return directory


class ElasticCase(LxdTestCase):
    """:ivar documents: what each container was told last"""

    def setUp(self) -> None:
        super().setUp()
        self.live = Live(self.engine, Privileged())
        self.notice = GuestNotice(GuestFiles(self.engine.pid, Privileged()), NOTICE_TIMEOUT)
        self.documents: dict[str, str] = {}

    def begin(self, spec: ContainerSpec, command: str) -> None:
        """Start a container and a command in it, whose output is in /root/out."""
        source = tools(self.directory() / "tools")
        spec = resources.with_document(dataclasses.replace(spec, mounts=(
            *PYTHON, Mount("tools", str(source), "/tools"), *spec.mounts)))
        self.documents[spec.name] = spec.labels[resources.LABEL]
        self.engine.create(spec)
        self.engine.start(spec.name)
        self.addOnException(lambda _: self.addDetail(spec.name, text_content("\n".join(self.lines(spec.name)))))
        script = f"cd /root; export PYTHONPATH=/tools:/site; setsid {command} > out 2>&1 < /dev/null &"
        self.assertEqual((0, ""), self.inside(spec.name, "sh", "-c", script))

    def lines(self, name: str = "c1") -> list[str]:
        """Return what the command has printed; also while the container is frozen."""
        return Path(f"/proc/{self.engine.pid(name)}/root/root/out").read_text().splitlines()

    def await_line(self, words: str, name: str = "c1", after: int = 0) -> None:
        await_that(lambda: any(words in line for line in self.lines(name)[after:]), f"{name} prints {words!r}")

    def resize(self, spec: ContainerSpec) -> bool:
        """Announce what goes, wait for the acknowledgement, take it, then tell what there is.

        :returns: whether the container was asked
        """
        coming = resources.following(resources.of(spec), self.documents[spec.name])
        asked = self.notice.announce(spec.name, self.documents[spec.name], coming)
        labels = dict(spec.labels) | {resources.LABEL: coming}
        self.live.adapt(self.live.read(spec.name), dataclasses.replace(spec, labels=labels))
        self.assertTrue(self.notice.notify(spec.name, coming))
        self.documents[spec.name] = coming
        return asked
