# SPDX-License-Identifier: Apache-2.0
import subprocess
from pathlib import Path

import fixtures

from tests.unit.hpcjob.test_opennebula import OpenNebulaCase


class OpenNebulaTest(OpenNebulaCase):
    def test_the_script_writes_the_files_and_again_at_the_next_boot(self) -> None:
        self.start()
        root = Path(self.useFixture(fixtures.TempDir()).path)
        (root / "etc").mkdir()
        (root / "etc/hosts").write_text("127.0.0.1 localhost\n")
        text = self.script(102).replace("'/", f"'{root}/")
        for _ in range(2):
            subprocess.run(["sh", "-c", text], check=True, timeout=30)
            self.assertEqual("".join(f"10.1.0.{rank + 5} slots=2\n" for rank in range(4)),
                             (root / "etc/hpcjob/hostfile").read_text())
            self.assertEqual("2\n", (root / "etc/hpcjob/rank").read_text())
            self.assertEqual("0 0 wave-1-0 10.1.0.5", (root / "etc/hpcjob/rankmap").read_text().splitlines()[0])
            self.assertEqual(["127.0.0.1 localhost", "10.1.0.5 wave-1-0"],
                             (root / "etc/hosts").read_text().splitlines()[:2])
            self.assertEqual(5, len((root / "etc/hosts").read_text().splitlines()))
            (authorized,) = (root / "root/.ssh/authorized_keys").read_text().splitlines()
            self.assertIn('from="10.1.0.5,10.1.0.6,10.1.0.7,10.1.0.8" ssh-ed25519 ', authorized)
        key = root / "root/.ssh/hpcjob"
        self.assertEqual(0o600, key.stat().st_mode & 0o777)
        public = subprocess.run(["ssh-keygen", "-y", "-f", str(key)], capture_output=True, text=True, check=True,
                                timeout=30)
        self.assertIn(" ".join(public.stdout.split()[:2]), authorized)

    def test_the_templates_own_start_script_runs_as_if_it_were_alone(self) -> None:
        self.cloud.context |= {"START_SCRIPT": "#!/bin/sh\numask\nfalse\necho mine $nothing\n"}
        self.start()
        root = self.useFixture(fixtures.TempDir()).path
        (Path(root) / "etc").mkdir()
        done = subprocess.run(["sh", "-c", f"umask 022\n{self.script(100)}".replace("'/", f"'{root}/")],
                              capture_output=True, text=True, check=False, timeout=30)
        self.assertEqual("0022\nmine\n", done.stdout, done.stderr)
