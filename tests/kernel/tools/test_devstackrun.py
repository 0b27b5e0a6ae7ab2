# SPDX-License-Identifier: Apache-2.0
"""Check the files that tools/devstack creates before its machine: local.conf, and mirrors that DevStack can clone."""

import subprocess
import tempfile
from pathlib import Path

import testtools

from tools.devstackrun import localconf, sources


def git(*words: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "init.defaultBranch=master")
    return subprocess.run(("git", *identity, *words), text=True, capture_output=True, check=True).stdout.strip()


class LocalConfTest(testtools.TestCase):
    def settings(self, wanted: localconf.Wanted) -> dict[str, str]:
        """Read local.conf as the shell does, which is how DevStack reads its section localrc."""
        lines = localconf.text(wanted).splitlines()
        self.assertEqual("[[local|localrc]]", lines[0])
        script = "\n".join(("enable_plugin() { echo \"plugin=$*\"; }", *lines[1:], "set -o posix; set"))
        told = subprocess.run(("bash", "-euc", script), text=True, capture_output=True, check=True, env={}).stdout
        return dict(line.split("=", 1) for line in told.splitlines() if "=" in line)

    def test_the_plugin_runs_on_the_engine_that_is_asked_for(self) -> None:
        for engine, group in ("lxd", "lxd"), ("incus", "incus-admin"):
            found = self.settings(localconf.Wanted(engine))
            self.assertEqual(("lxd", engine, group),
                             (found["VIRT_DRIVER"], found["LXD_ENGINE"], found["LXD_GROUP"]))

    def test_the_plugin_is_cloned_from_the_branch_that_its_mirror_has(self) -> None:
        plugin = self.settings(localconf.Wanted())["plugin"]
        self.assertEqual(f"{sources.PLUGIN} file:///opt/sources/{sources.PLUGIN} {sources.BRANCH}", plugin)

    def test_mirrors_of_the_services_only_where_there_are_some(self) -> None:
        self.assertEqual("file:///opt/sources", self.settings(localconf.Wanted(mirrors=True))["GIT_BASE"])
        self.assertNotIn("GIT_BASE", self.settings(localconf.Wanted(mirrors=False)))

    def test_tempest_is_a_service_if_it_is_asked_for(self) -> None:
        for asked in (True, False):
            services = self.settings(localconf.Wanted(tempest=asked))["ENABLED_SERVICES"].split(",")
            self.assertEqual(asked, "tempest" in services)

    def test_further_settings_win(self) -> None:
        found = self.settings(localconf.Wanted(more=("LXD_STORAGE_DRIVER=btrfs", "API_WORKERS=4")))
        self.assertEqual(("btrfs", "4"), (found["LXD_STORAGE_DRIVER"], found["API_WORKERS"]))


class SourcesTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = Path(directory.name)
        self.said: list[str] = []

    def repository(self, name: str) -> Path:
        path = self.directory / name
        git("init", "--quiet", str(path))
        self.commit(path)
        return path

    def commit(self, path: Path) -> str:
        git("-C", str(path), "commit", "--quiet", "--allow-empty", "--message", "x")
        return git("-C", str(path), "rev-parse", "HEAD")

    def made(self) -> Path:
        target = self.directory / "mirrors"
        sources.make(self.directory / "devstack", self.directory / "all", self.directory / "checkout", target,
                     self.said.append)
        return target

    def test_mirrors_have_the_commits_of_their_repositories(self) -> None:
        services = {name: self.repository(f"all/openstack/{name}") for name in sources.SERVICES}
        checkout = self.repository("checkout")
        git("-C", str(checkout), "checkout", "--quiet", "--detach")
        self.repository("devstack")
        target = self.made()
        for name, source in services.items():
            self.assertEqual(git("-C", str(source), "rev-parse", "master"),
                             git("ls-remote", f"file://{target}/openstack/{name}.git", "refs/heads/master").split()[0])
        plugin = git("ls-remote", f"file://{target}/{sources.PLUGIN}", f"refs/heads/{sources.BRANCH}")
        self.assertEqual(git("-C", str(checkout), "rev-parse", "HEAD"), plugin.split()[0])

        self.said.clear()
        newer = self.commit(services["nova"])
        self.made()
        self.assertEqual([f"{services['nova']} is mirrored"], self.said)
        self.assertEqual(newer, git("-C", str(target / "openstack/nova.git"), "rev-parse", "HEAD"))

    def test_a_repository_that_is_not_there_is_named(self) -> None:
        (self.directory / "all").mkdir()
        error = self.assertRaises(sources.SourceMissing, sources.find, self.directory / "all", "nova")
        self.assertIn(f"{self.directory}/all/openstack/nova.git", str(error))
