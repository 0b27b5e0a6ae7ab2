# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import testtools

from hpcjob import files, keys
from hpcjob.errors import BadJob, GangFailed
from hpcjob.job import Member, parse
from tests.unit.hpcjob import jobs

SAMPLE = Path(__file__).parents[3] / "etc/job.yaml.sample"


class ParseTest(testtools.TestCase):
    def test_sample(self) -> None:
        job = parse(SAMPLE.read_text())
        self.assertEqual({"openstack", "opennebula"}, set(job.clouds))

    def test_defaults(self) -> None:
        job = parse("{name: a, members: 3, groups: 2}")
        self.assertEqual((1, 600, False, {}), (job.slots, job.timeout, job.strict, job.clouds))
        self.assertEqual([0, 0, 1], job.division())

    def test_tasks_are_divided_among_the_members(self) -> None:
        job = parse("{name: a, members: 3, groups: 2, tasks: 4}")
        self.assertEqual((2, [2, 1, 1]), (job.slots, [job.slots_of(rank) for rank in range(3)]))
        refused = self.assertRaises(BadJob, parse, "{name: a, members: 4, groups: 2, tasks: 3}")
        self.assertIn("tasks=3 must be from 1 to 4096 for each of members=4", str(refused))
        members = [Member(rank, 0, f"a-{rank}", f"10.0.0.{rank}") for rank in range(3)]
        self.assertEqual("10.0.0.0 slots=2\n10.0.0.1 slots=1\n10.0.0.2 slots=1\n", files.hostfile(job, members))

    def test_refused_with_the_key(self) -> None:
        for changes, words in (
                ({"name": "Wave"}, "name='Wave'"), ({"name": "-a"}, "name='-a'"), ({"name": '"a;b"'}, "name='a;b'"),
                ({"members": 0}, "members=0 must be a whole number from 1"), ({"members": "many"}, "members='many'"),
                ({"members": "true"}, "members=True"), ({"groups": 5}, "groups=5 is more than members=4"),
                ({"timeout": 0}, "timeout=0"), ({"strict": "maybe"}, "strict='maybe'"),
                ({"oversubscribe": 2}, "oversubscribe=2 must be true or false"),
                ({"tasks": 8}, "slots and tasks conflict"),
                ({"rank": 1}, "unknown keys rank"),
                ({"openstack": "{image: a, flavor: b}"}, "section openstack lacks network"),
                ({"openstack": "{image: a, flavor: b, network: c, disk: d}"}, "unknown keys disk"),
                ({"openstack": "{image: a, flavor: b, network: ''}"}, "openstack: network=''"),
                ({"openstack": "{image: a, flavor: b, network: c, security_groups: x}"}, "must be a list"),
                ({"openstack": "[1]"}, "section openstack is not a mapping"), ({"opennebula": "{}"}, "lacks template")):
            self.assertIn(words, str(self.assertRaises(BadJob, jobs.job, **changes)), changes)
        for text in ("", "[1]", "{", "a: !!python/object:os.system x", "a: 2020-99-99", "a: !!timestamp x",
                     "a: !!bool x", 'a: !!int ""', "[" * 50_000):
            self.assertRaises(BadJob, parse, text)

    def test_a_cloud_without_section(self) -> None:
        job = parse("{name: a, members: 1, groups: 1}")
        self.assertIn("add one with image, flavor, network", str(self.assertRaises(BadJob, job.cloud, "openstack")))


class FilesTest(testtools.TestCase):
    def test_an_address_that_is_none_reaches_no_file(self) -> None:
        for address in ("10.0.0.1\nHost *", "", "node", "10.0.0.1/24", "fe80::1%0\nProxyCommand sh", "fe80::1%eth0"):
            self.assertRaises(GangFailed, files.files, jobs.job(), [Member(0, 0, "a", address)], 0, keys.make("a"))

    def test_the_key_is_in_no_representation(self) -> None:
        key = keys.make("a")
        (secret,) = [file for file in files.files(jobs.job(), [Member(0, 0, "a", "fd00::1")], 0, key)
                     if file.path == files.KEY]
        self.assertEqual(key.private, secret.content)
        self.assertNotIn("PRIVATE", repr((key, secret)))
