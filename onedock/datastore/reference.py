# SPDX-License-Identifier: Apache-2.0
"""Parse image references: ``docker://[HOST[:PORT]/]NAME[:TAG][@DIGEST]``. Pure.

The grammar is that of the `distribution` project, which Docker uses: a name without a host is Docker Hub's, one without
a directory there is in ``library``, and one without a tag or digest means ``latest``.
"""

import dataclasses
import re
from typing import Self

from onedriver.errors import BadInput

SCHEME = "docker://"
HUB = "docker.io"
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_HOST = r"(?:[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?)(?:\.[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?)*(?::[0-9]{1,5})?"
FORM = re.compile(rf"(?:(?P<host>{_HOST})/)?(?P<name>{_PART}(?:/{_PART})*)"
                  r"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?")
LIMIT = 400  # letters


@dataclasses.dataclass(frozen=True)
class Reference:
    """Identify an image in a registry by host, name, and tag or digest.

    :ivar host: with its port, as in the reference: ``docker.io``, ``registry.example:5000``
    :ivar name: with its directories: ``library/nginx``
    """

    host: str
    name: str
    tag: str | None
    digest: str | None

    def __str__(self) -> str:
        return (f"{SCHEME}{self.host}/{self.name}" + (f":{self.tag}" if self.tag else "")
                + (f"@{self.digest}" if self.digest else ""))

    @property
    def version(self) -> str:
        """Return what to request from the registry: the digest if there is one, because a tag may change."""
        return self.digest or self.tag or "latest"

    def pinned(self, digest: str) -> Self:
        return dataclasses.replace(self, digest=digest)


def parse(text: str) -> Reference:
    """Parse a reference; raise BadInput on anything else."""
    rest = text.removeprefix(SCHEME)
    host, slash, name = rest.partition("/")
    if not (slash and ("." in host or ":" in host or host == "localhost")):
        host, name = HUB, rest
    found = FORM.fullmatch(f"{host}/{name}") if len(rest) <= LIMIT else None
    if found is None:
        raise BadInput(f"{text[:120]!r} is not an image reference such as docker://nginx:1.27 or "
                       "docker://registry.example:5000/team/tool:2@sha256:…")
    name = found["name"]
    if host == HUB and "/" not in name:
        name = f"library/{name}"
    return Reference(host, name, found["tag"] or (None if found["digest"] else "latest"), found["digest"])
