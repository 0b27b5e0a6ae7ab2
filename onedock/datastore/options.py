# SPDX-License-Identifier: Apache-2.0
"""Read a datastore's own attributes (ONEDOCK_…), which only administrators can set."""

import base64
import binascii
import dataclasses
import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from onedock.datastore import content
from onedock.datastore.reference import parse
from onedock.datastore.registry import Credentials
from onedriver.errors import BadInput
from onedriver.section import Section

PREFIX = "ONEDOCK_"
# OpenNebula's own default of SAFE_DIRS.
USUAL_DIRECTORIES = ("/var/tmp",)  # noqa: S108
HUB_KEYS = ("docker.io", "index.docker.io", "https://index.docker.io/v1/")
LIMIT = 1 << 20  # bytes of a file of credentials
IMAGE_LIMIT = 100 << 10  # MiB


@dataclasses.dataclass(frozen=True)
class Options:
    """Hold the options of a datastore: permitted sources of images, their storage, and their limit.

    :ivar architecture: of all its nodes, in the images' notation: ``amd64``, ``arm64``…
    :ivar keep_layers: whether the layers of a registry's image are stored here; otherwise nodes fetch it from the
        registry
    :ivar hosts: permitted registries and web servers; empty permits any
    :ivar plain_hosts: those that are accessed without TLS
    :ivar credentials_file: file in the format of `docker login`
    :ivar credentials: the same as text, of an encrypted attribute
    :ivar safe_directories: directories of the front-end from which images may be read
    :ivar image_limit: maximum bytes of an image here, including temporary unpacked data
    """

    architecture: str
    keep_layers: bool
    hosts: frozenset[str]
    plain_hosts: frozenset[str]
    credentials_file: str | None
    credentials: str | None = dataclasses.field(repr=False)
    safe_directories: tuple[str, ...]
    image_limit: int

    def require_host(self, host: str, what: str) -> None:
        """Raise BadInput if images from a host are not permitted."""
        if self.hosts and host not in self.hosts:
            raise BadInput(f"images from this source are not permitted: {host} ({what}); this datastore "
                           f"permits {', '.join(sorted(self.hosts))} (ONEDOCK_HOSTS)")

    def credentials_for(self, host: str) -> Credentials | None:
        """Return a registry's credentials; raise BadInput if their file is damaged, or readable by others."""
        text = self.credentials
        if text is None and self.credentials_file:
            text = private(Path(self.credentials_file))
        return of(text, host) if text is not None else None


def read(section: Section) -> Options:
    """Read a datastore's own attributes from its TEMPLATE."""
    unknown = [name for name in section.names if name.startswith(PREFIX) and name not in KNOWN]
    if unknown:
        raise BadInput(f"the datastore has {', '.join(sorted(unknown))}, which this driver does not know; it knows "
                       f"{', '.join(sorted(KNOWN))}")
    keep = section.flag("ONEDOCK_KEEP_LAYERS")
    options = Options(
        architecture=section.text("ONEDOCK_ARCHITECTURE") or content.own_architecture(), keep_layers=keep is not False,
        hosts=words(section, "ONEDOCK_HOSTS"), plain_hosts=words(section, "ONEDOCK_PLAIN_HOSTS"),
        credentials_file=section.text("ONEDOCK_CREDENTIALS_FILE"), credentials=section.text("ONEDOCK_CREDENTIALS"),
        safe_directories=tuple((section.text("SAFE_DIRS") or "").split()) or USUAL_DIRECTORIES,
        image_limit=(section.integer("ONEDOCK_IMAGE_LIMIT", 1) or IMAGE_LIMIT) << 20)
    if not options.keep_layers and options.credentials is not None:
        raise BadInput("a datastore whose nodes fetch images themselves (ONEDOCK_KEEP_LAYERS=NO) has its credentials "
                       "in a file (ONEDOCK_CREDENTIALS_FILE), not in ONEDOCK_CREDENTIALS")
    return options


KNOWN = frozenset({"ONEDOCK_ARCHITECTURE", "ONEDOCK_KEEP_LAYERS", "ONEDOCK_HOSTS", "ONEDOCK_PLAIN_HOSTS",
                   "ONEDOCK_CREDENTIALS_FILE", "ONEDOCK_CREDENTIALS", "ONEDOCK_IMAGE_LIMIT"})


def pulling(reference: str, credentials_file: str | None) -> str:
    """Return the engine's input for pulling an image as JSON: the reference, and its registry's user and password."""
    host = parse(reference).host
    found = of(private(Path(credentials_file)), host) if credentials_file else None
    return json.dumps({"reference": reference, "user": found[0] if found else None,
                       "password": found[1] if found else None})


def words(section: Section, key: str) -> frozenset[str]:
    return frozenset((section.text(key) or "").replace(",", " ").split())


def private(path: Path) -> str:
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            data = file.read(LIMIT)
    except OSError as error:
        raise BadInput(f"the credentials in {path} cannot be read: {error.strerror}") from error
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise BadInput(f"the credentials in {path} can be read by others than their owner: chmod 600 {path}")
    return data.decode(errors="replace")


def of(text: str, host: str) -> Credentials | None:
    """Return the credentials of Docker's ``config.json``: ``{"auths": {"HOST": {"auth": base64 of USER:WORD}}}``."""
    try:
        auths = json.loads(text)["auths"]
        entry: Mapping[str, Any] = next((auths[key] for key in ((host, f"https://{host}") if host not in HUB_KEYS
                                                                else HUB_KEYS) if key in auths), {})
        if "username" in entry and "password" in entry:
            return str(entry["username"]), str(entry["password"])
        if not entry.get("auth"):
            return None
        user, colon, password = base64.b64decode(entry["auth"], validate=True).decode().partition(":")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, binascii.Error):
        # The reason would quote the text, which is secret.
        raise BadInput("the datastore's credentials are not in the format of `docker login`") from None
    if not colon:
        raise BadInput(f"the datastore's credentials for {host} have no password")
    return user, password
