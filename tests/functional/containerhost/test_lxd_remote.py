# SPDX-License-Identifier: Apache-2.0
"""The daemon over TLS, in projects, and with several writers at once."""

import datetime
import socket
import threading
from pathlib import Path

import fixtures
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from containerhost import errors
from containerhost.devices.grants import GrantOptions
from containerhost.devices.model import Kind
from containerhost.engines.contract import Executed
from containerhost.engines.lxd.client import LxdClient, Settings
from containerhost.engines.lxd.engine import LxdEngine
from containerhost.inventory.scan import scan
from containerhost.vendors import make_grant
from tests.functional.containerhost.base import LxdTestCase


def self_signed(directory: Path, name: str) -> tuple[str, str]:
    """Files of a new certificate and its key."""
    key = ec.generate_private_key(ec.SECP384R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (x509.CertificateBuilder().subject_name(subject).issuer_name(subject).public_key(key.public_key())
                   .serial_number(x509.random_serial_number()).not_valid_before(now - datetime.timedelta(days=1))
                   .not_valid_after(now + datetime.timedelta(days=1)).sign(key, hashes.SHA256()))
    cert_file, key_file = directory / f"{name}.crt", directory / f"{name}.key"
    cert_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    key_file.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8,
                                           serialization.NoEncryption()))
    return str(cert_file), str(key_file)


class TestTls(LxdTestCase):
    def setUp(self):
        super().setUp()
        self.directory = Path(self.useFixture(fixtures.TempDir()).path)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{probe.getsockname()[1]}"
        self._configure(address)
        self.addCleanup(self._configure, "")
        self.cert, self.key = self_signed(self.directory, "client")
        self.endpoint = f"https://{address}"
        self.server_cert = str(self.lxd.daemon.directory / "server.crt")

    def _configure(self, address):
        self.engine.client.request("patch", asked="listen", json={"config": {"core.https_address": address}})

    def _trust(self):
        text = Path(self.cert).read_text().replace("-----BEGIN CERTIFICATE-----", "")
        body = {"type": "client", "name": "test", "certificate": text.replace("-----END CERTIFICATE-----", "").strip()}
        self.engine.client.request("post", "certificates", asked="trust", json=body)

    def _engine(self, **settings):
        parts = {"endpoint": self.endpoint, "cert": self.cert, "key": self.key, "server_cert": self.server_cert,
                 "request_timeout": 10}
        return LxdEngine(LxdClient(Settings(**(parts | settings))), locks=self.lxd.daemon.base)

    def test_a_trusted_client_may_do_everything(self):
        self._trust()
        engine = self._engine()
        engine.create(self.spec())
        engine.start("c1")
        self.assertIsNotNone(engine.metrics("c1").pid)
        self.assertEqual(Executed(0, b"hello"), engine.execute("c1", ["cat"], b"hello", timeout=60))
        engine.delete("c1")

    def test_a_client_that_is_not_trusted(self):
        error = self.assertRaises(errors.EngineError, self._engine().containers)
        self.assertIn("not authorized", str(error).lower())

    def test_another_server_in_its_place_is_refused(self):
        other, _ = self_signed(self.directory, "other")
        self.assertRaises(errors.EngineUnavailable, self._engine(server_cert=other).containers)
        # Neither does the system's authorities' word hold for a self-signed server.
        self.assertRaises(errors.EngineUnavailable, self._engine(server_cert=None).containers)
        self.assertRaises(errors.EngineError, self._engine(server_cert=other).events)

    def test_files_that_are_not_there(self):
        for name in ("cert", "server_cert"):
            error = self.assertRaises(errors.EngineError, self._engine(**{name: "/nonexistent"}).containers)
            self.assertIn("/nonexistent", str(error))


class TestProjects(LxdTestCase):
    def setUp(self):
        super().setUp()
        client = self.engine.client
        client.request("post", "projects", asked="make a project", json={
            "name": "lab", "config": {"features.images": "false", "features.profiles": "false"}})
        self.addCleanup(client.request, "delete", "projects", "lab", asked="remove the project")
        self.lab = LxdEngine(self.lxd.daemon.client(project="lab"), locks=self.lxd.daemon.base)
        self.addCleanup(lambda: [self.lab.delete(state.name) for state in self.lab.containers()])

    def test_each_sees_its_own_and_all_see_who_holds_what(self):
        gpu = next(device for device in scan().devices if device.kind is Kind.GPU)
        self.lab.create(self.spec("c1", parts=(make_grant(gpu, GrantOptions()),)))
        self.assertEqual((), self.engine.containers())
        self.assertEqual(["c1"], [state.name for state in self.lab.containers()])
        self.assertEqual({gpu.id: "lab/c1"}, dict(self.engine.held([gpu])))
        self.assertEqual({gpu.id: "c1"}, dict(self.lab.held([gpu])))


class TestManyWriters(LxdTestCase):
    def test_no_change_is_lost(self):
        """Each attach reads, changes and writes back; between two of them somebody else may write."""
        grants = [make_grant(device, GrantOptions()) for device in scan().devices if device.kind is Kind.GPU]
        self.engine.create(self.spec())
        for action, left in ((self.engine.attach, len(grants)),
                             (lambda name, grant: self.engine.detach(name, grant, []), 0)):
            threads = [threading.Thread(target=action, args=("c1", grant)) for grant in grants]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            instance, _ = self.engine.client.instance("c1")
            self.assertEqual(left, len([name for name in instance["devices"] if name.startswith("gpu-")]))

    def test_a_stale_write_is_refused(self):
        self.engine.create(self.spec())
        instance, etag = self.engine.client.instance("c1")
        self.engine.client.patch_instance("c1", {"config": {"user.other": "x"}})
        for write in (self.engine.client.replace_instance, self.engine.client.patch_instance):
            self.assertRaises(errors.EngineConflict, write, "c1", instance, etag)
