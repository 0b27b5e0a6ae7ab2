# SPDX-License-Identifier: Apache-2.0
import testtools

from onedock.datastore import reference
from onedriver.errors import BadInput

DIGEST = "sha256:" + "ab" * 32


class ReferenceTest(testtools.TestCase):
    def test_what_is_left_out_is_what_docker_takes(self) -> None:
        for text, whole, version in (
            ("docker://nginx", "docker://docker.io/library/nginx:latest", "latest"),
            ("docker://nginx:1.27", "docker://docker.io/library/nginx:1.27", "1.27"),
            ("docker://team/tool", "docker://docker.io/team/tool:latest", "latest"),
            ("docker://docker.io/nginx", "docker://docker.io/library/nginx:latest", "latest"),
            ("docker://localhost/tool", "docker://localhost/tool:latest", "latest"),
            ("docker://registry.example:5000/a/b-c__d/e.f:V_1.x", "docker://registry.example:5000/a/b-c__d/e.f:V_1.x",
             "V_1.x"),
            (f"docker://tool@{DIGEST}", f"docker://docker.io/library/tool@{DIGEST}", DIGEST),
            (f"docker://tool:1@{DIGEST}", f"docker://docker.io/library/tool:1@{DIGEST}", DIGEST),
        ):
            found = reference.parse(text)
            self.assertEqual((whole, version), (str(found), found.version))
            self.assertEqual(found, reference.parse(str(found)))

    def test_a_pinned_one_asks_for_the_digest(self) -> None:
        self.assertEqual(DIGEST, reference.parse("docker://nginx:1").pinned(DIGEST).version)

    def test_what_is_no_reference_is_refused(self) -> None:
        for text in ("docker://", "docker:///a", "docker://Nginx", "docker://a "
                                                                   "b", "docker://a;reboot", "docker://a$(id)",
                     "docker://a`id`", "docker://a\nb", "docker://a:", "docker://a@sha256:12", "docker://a@md5:ab",
                     "docker://../etc/passwd", "docker://a/../b", "docker://h:99999999/a", "docker://a?size=1&x=2",
                     "docker://user:word@host.example/a", "docker://-o/x", "docker://" + "a" * 500, "docker://a//b",
                     "docker://ä"):
            self.assertIn("not an image reference", str(self.assertRaises(BadInput, reference.parse, text)), text)
