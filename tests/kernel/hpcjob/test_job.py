# SPDX-License-Identifier: Apache-2.0
import os
import subprocess
from pathlib import Path

import fixtures
import testtools

from hpcjob import files, keys
from hpcjob.job import Member
from tests.unit.hpcjob import jobs


class FilesTest(testtools.TestCase):
    def wait(self, ssh: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Run the script that waits for the members, with a program in place of ssh."""
        directory = Path(self.useFixture(fixtures.TempDir()).path)
        members = [Member(rank, 0, f"a-{rank}", f"10.0.0.{rank}") for rank in range(3)]
        made = {file.path: file for file in files.files(jobs.job(), members, 0, keys.make("a"))}
        for name in ("hostfile", "wait"):
            file = made[f"{files.DIRECTORY}/{name}"]
            (directory / name).write_text(file.content.replace(files.DIRECTORY, str(directory)))
            (directory / name).chmod(file.mode)
        (directory / "ssh").write_text(f'#!/bin/sh\nfor address; do [ "$address" = true ] || at=$address; done\n'
                                       f'cd {directory}\n{ssh}\n')
        (directory / "ssh").chmod(0o755)
        (directory / "sleep").symlink_to("/bin/true")
        self.asked = directory / "asked"
        return subprocess.run([str(directory / "wait"), *arguments], capture_output=True, text=True, check=False,
                              env={"PATH": f"{directory}:{os.environ['PATH']}"}, timeout=60)

    def test_members_are_asked_until_each_lets_this_one_in(self) -> None:
        done = self.wait('echo "$at" >> asked; [ "$at" != 10.0.0.1 ] || [ "$(grep -c 0.1 asked)" = 3 ]')
        self.assertEqual((0, ""), (done.returncode, done.stderr))
        self.assertEqual(["10.0.0.0", *["10.0.0.1"] * 3, "10.0.0.2"], self.asked.read_text().split())

    def test_a_member_that_lets_nobody_in_is_named(self) -> None:
        done = self.wait('[ "$at" != 10.0.0.1 ] || { echo Permission denied; exit 255; }', "0")
        self.assertEqual((1, "hpcjob: 10.0.0.1 does not let this member in: Permission denied\n"),
                         (done.returncode, done.stderr))
