# SPDX-License-Identifier: Apache-2.0
import base64
import gzip
import json
from pathlib import Path
from unittest import mock

from onedock.datastore import registry
from onedock.datastore.content import WrongArchitecture
from onedock.datastore.decompress import Corrupt
from onedock.datastore.digests import DigestMismatch, SizeMismatch
from onedock.datastore.record import Record
from onedock.datastore.registry import RegistryError
from onedriver.errors import BadInput, DriverError
from tests.functional_docker.registries import Registry
from tests.unit.onedock.datastore.base import DatastoreTestCase
from tests.unit.onedock.images import Image, compressed, digest

WORD = "s3cret-word"
BASIC = f"Basic {base64.b64encode(f'user:{WORD}'.encode()).decode()}"


class RegistryTestCase(DatastoreTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.registry = self.useFixture(Registry())
        self.image = Image("base", "tool")
        self.pinned = self.registry.keep(self.image)

    def take(self, version: str = ":1", **attributes: str) -> Record:
        return Record.read(self.registered(Path(self.path(version)), **self.attributes(attributes)))

    def registered(self, path: Path, **attributes: str) -> Path:
        return Path(self.act("cp", {"PATH": str(path).replace("docker:/", "docker://", 1)}, **attributes).split()[0])

    def path(self, version: str = ":1") -> str:
        return f"docker://{self.registry.host}/tool{version}"

    def attributes(self, more: dict[str, str]) -> dict[str, str]:
        return {"ONEDOCK_PLAIN_HOSTS": self.registry.host} | more

    def refused(self, kind: type[Exception], words: str, version: str = ":1", **attributes: str) -> None:
        self.assert_refused(kind, words, self.path(version), **self.attributes(attributes))

    def credentials(self, word: str = WORD, mode: int = 0o600) -> dict[str, str]:
        text = json.dumps({"auths": {self.registry.host: {"auth": base64.b64encode(f"user:{word}".encode()).decode()}}})
        path = self.file(text.encode(), "credentials.json")
        path.chmod(mode)
        return {"ONEDOCK_CREDENTIALS_FILE": str(path)}


class PullTest(RegistryTestCase):
    def test_a_tag_is_pinned_to_its_digest(self) -> None:
        record = self.take()
        self.assertEqual((self.image.id, f"{self.path()}@{self.pinned}"), (record.image, record.reference))
        self.assertEqual({digest(layer): 2 for layer in self.image.layers}, self.layers())
        self.assertEqual(record.image, self.take(f"@{self.pinned}").image)

    def test_layers_that_are_there_are_not_fetched(self) -> None:
        self.take()
        self.registry.asked.clear()
        self.registry.keep(Image("base", "newer"), tag="2")
        self.take(":2")
        newer = digest(compressed(Image("newer").layers[0]))
        self.assertEqual([newer], [path.rpartition("/")[2] for path, _ in self.registry.asked
                                   if path.endswith((newer, digest(compressed(self.image.layers[0]))))])

    def test_sizes_come_without_layers(self) -> None:
        self.assertEqual("1", self.act("stat", {"PATH": self.path()}, **self.attributes({})))
        layers = {digest(compressed(layer)) for layer in self.image.layers}
        self.assertEqual(set(), layers & {path.rpartition("/")[2] for path, _ in self.registry.asked})

    def test_nodes_may_be_left_to_fetch_it(self) -> None:
        more = {"ONEDOCK_KEEP_LAYERS": "NO"}
        record = self.take(**more, **self.credentials())
        self.assertEqual((None, f"{self.path()}@{self.pinned}", str(self.files / "credentials.json")),
                         (record.directory, record.reference, record.credentials))
        self.assertEqual({}, self.layers())
        self.registry.keep(Image(architecture="s390x"), tag="1")
        self.assertRaises(WrongArchitecture, self.take, **more)

    def test_what_there_is_not(self) -> None:
        for version in (":2", "/none:1", f"@{digest(b'')}"):
            self.refused(BadInput, "there is no image", version)

    def test_another_architecture(self) -> None:
        self.registry.keep(Image(architecture="s390x"), tag="other")
        self.refused(WrongArchitecture, "linux/s390x", ":other")

    def test_content_that_is_not_what_its_digest_says(self) -> None:
        whole = dict(self.registry.answers)
        packed = compressed(self.image.layers[1])
        for path, content in (
            (f"/v2/tool/manifests/{self.pinned}", b"{}"), (f"/v2/tool/blobs/{self.image.id}", b"{}"),
            (f"/v2/tool/blobs/{digest(packed)}", compressed(self.image.layers[0])),
            (f"/v2/tool/blobs/{digest(packed)}", packed[:-4]), (f"/v2/tool/blobs/{digest(packed)}", packed + b"x"),
        ):
            self.assertIn(path, whole)
            self.registry.answers = whole | {path: (200, {}, content)}
            larger = path.endswith(digest(packed)) and len(content) > len(packed)
            kind, words = (SizeMismatch, "more bytes than") if larger else (DigestMismatch, "digest")
            self.refused(kind, words, f"@{self.pinned}")

    def test_a_connection_that_breaks_off(self) -> None:
        packed = compressed(self.image.layers[1])
        self.registry.answers[f"/v2/tool/blobs/{digest(packed)}"] = (200, {"Content-Length": "99999"}, packed)
        self.refused(RegistryError, "cannot be reached")

    def test_answers_that_are_none(self) -> None:
        for content, kind in ((b"<html>", Corrupt), (b"[]", Corrupt), (b'{"fsLayers": []}', BadInput),
                              (b'{"manifests": [{}]}', Corrupt), (b'{"config": {}, "layers": []}', Corrupt),
                              (b"x" * (registry.MANIFEST_LIMIT + 1), RegistryError)):
            self.registry.answers["/v2/tool/manifests/1"] = (200, {}, content)
            self.refused(kind, "")
        for status, words in ((500, "HTTP status 500"), (429, "no more requests"), (403, "refuses")):
            self.registry.answers["/v2/tool/manifests/1"] = (status, {}, b"")
            self.refused(DriverError, words)

    def test_an_address_without_tls_must_be_allowed(self) -> None:
        self.assert_refused(RegistryError, "ONEDOCK_PLAIN_HOSTS", self.path(), ONEDOCK_HOSTS=self.registry.host)
        self.assert_refused(BadInput, "an address of the front-end itself", self.path())

    def test_only_hosts_that_are_allowed(self) -> None:
        self.refused(BadInput, "ONEDOCK_HOSTS", ONEDOCK_HOSTS="registry.example, other.example:5000")
        self.assert_refused(BadInput, "ONEDOCK_HOSTS", f"http://{self.registry.host}/x", ONEDOCK_HOSTS="other.example")
        self.take(ONEDOCK_HOSTS=f"{self.registry.host} registry.example")


class CredentialsTest(RegistryTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.registry.challenge, self.registry.authorization = 'Basic realm="here"', BASIC

    def test_of_a_file_and_of_an_attribute(self) -> None:
        attributes = self.credentials()
        self.take(**attributes)
        self.take(ONEDOCK_CREDENTIALS=Path(attributes["ONEDOCK_CREDENTIALS_FILE"]).read_text())

    def test_missing_or_wrong_ones(self) -> None:
        self.refused(BadInput, "ONEDOCK_CREDENTIALS_FILE")
        self.refused(BadInput, "refuses the credentials", **self.credentials("wrong"))

    def test_ones_that_are_damaged_are_not_quoted(self) -> None:
        for text in ("", "{", '{"auths": 7}', f'{{"auths": {{"{self.registry.host}": {{"auth": "{WORD}"}}}}}}'):
            error = self.assertRaises(BadInput, self.take, ONEDOCK_CREDENTIALS=text or " x")
            self.assertNotIn(WORD, str(error))

    def test_a_file_that_others_can_read_is_refused(self) -> None:
        self.refused(BadInput, "chmod 600", **self.credentials(mode=0o640))
        self.refused(BadInput, "cannot be read", ONEDOCK_CREDENTIALS_FILE=str(self.files / "none"))

    def test_a_token_is_fetched_with_them(self) -> None:
        host = self.registry.host
        self.registry.challenge = f'Bearer realm="http://{host}/token",service="{host}",scope="other"'
        self.registry.authorization = "Bearer of-the-token"
        self.registry.answers["/token"] = (200, {}, b'{"token": "of-the-token"}')
        self.take(**self.credentials())
        (query, authorization), = [asked for asked in self.registry.asked if asked[0].startswith("/token")]
        self.assertIn("scope=repository%3Atool%3Apull", query)
        self.assertEqual(BASIC, authorization)
        self.registry.answers["/token"] = (200, {}, b'{"token": "bad\\r\\nX: y"}')
        self.assertRaises(RegistryError, self.take, **self.credentials())

    def test_they_go_nowhere_else(self) -> None:
        other = self.useFixture(Registry())
        self.registry.answers["/v2/tool/manifests/1"] = (307, {"Location": f"http://{other.host}/v2/x"}, b"")
        other.answers["/v2/x"] = (404, {}, b"")
        self.assertRaises(BadInput, self.take, **self.credentials())
        self.assertEqual([], other.asked)  # it is on this machine
        plain = {"ONEDOCK_PLAIN_HOSTS": f"{self.registry.host} {other.host}"}
        self.assertRaises(BadInput, self.take, **self.credentials(), **plain)
        self.assertEqual([("/v2/x", None)], other.asked)

    def test_tokens_without_tls_only_where_that_is_allowed(self) -> None:
        wanted = registry.Registry("registry.example", ("user", WORD))
        self.assertRaises(RegistryError, wanted._fetched_token, {"realm": "http://x.example"}, mock.Mock())

    def test_an_attribute_that_is_misspelt_is_refused(self) -> None:
        self.refused(BadInput, "ONEDOCK_HOST,", ONEDOCK_HOST="x")
        self.refused(BadInput, "ONEDOCK_CREDENTIALS_FILE", ONEDOCK_KEEP_LAYERS="NO", ONEDOCK_CREDENTIALS="{}")


class WebTest(RegistryTestCase):
    def test_an_archive_of_a_web_server(self) -> None:
        self.registry.answers["/x.tar.gz"] = (200, {}, gzip.compress(self.image.saved()))
        source = self.act("cp", {"PATH": f"http://{self.registry.host}/x.tar.gz"}, **self.attributes({})).split()[0]
        self.assertEqual(self.image.id, Record.read(Path(source)).image)
        self.assertEqual("1", self.act("stat", {"PATH": f"http://{self.registry.host}/x.tar.gz"},
                                       **self.attributes({})))

    def test_data_of_a_web_server(self) -> None:
        self.registry.answers["/x"] = (200, {}, b"data")
        image = {"PATH": f"http://{self.registry.host}/x", "TYPE": "2"}
        source = self.act("cp", image, **self.attributes({})).split()[0]
        self.assertEqual(b"data", Path(source).read_bytes())

    def test_what_cannot_be_fetched(self) -> None:
        self.registry.answers["/cut"] = (200, {"Content-Length": "99999"}, self.image.saved())
        for path, words in (("/none", "404"), ("/cut", "cannot be reached")):
            self.assert_refused(DriverError, words, f"http://{self.registry.host}{path}", **self.attributes({}))
        error = self.assertRaises(BadInput, self.act, "cp", {"PATH": f"http://user:{WORD}@{self.registry.host}/x"})
        self.assertNotIn(WORD, str(error))
