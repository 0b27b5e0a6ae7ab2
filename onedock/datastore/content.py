# SPDX-License-Identifier: Apache-2.0
"""Describe a container image independent of its source: its configuration and its layers.

The configuration is the OCI image specification's config.md, which Docker's own is a subset of. Its digest is the
engine's id of the image, and it contains the digest of every layer's unpacked tarball (``diff_ids``): so the id is
sufficient to verify everything.
"""

import dataclasses
import json
import platform
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, BinaryIO, Self

from onedock.datastore import digests
from onedock.datastore.decompress import Corrupt
from onedriver.errors import BadInput

CONFIG_LIMIT = 8 << 20  # bytes
LAYERS_LIMIT = 500  # Docker's own is 127
INDEX_DEPTH = 4
SIF_MAGIC = b"SIF_MAGIC"  # 32 bytes behind the beginning

#: Machines as Linux calls them, by their names in images (Go's GOARCH).
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "i686": "386", "armv7l": "arm"}


class WrongArchitecture(BadInput):
    """Signal that the image is for another machine."""


@dataclasses.dataclass(frozen=True)
class Layer:
    """Describe a layer of an image: how to open it, and the digest and size that its source gives.

    :ivar open: its tarball, perhaps packed
    :ivar digest: of the stored tarball; None if unknown
    :ivar size: maximum bytes, as counted by OpenNebula; None if unknown
    :ivar proven: whether its source is known to have the layer that the configuration names, so that it need not be
        read again. Otherwise anyone who knows the digest of another tenant's layer could obtain it
    """

    open: Callable[[], AbstractContextManager[BinaryIO]]
    digest: str | None = None
    size: int | None = None
    proven: bool = False


@dataclasses.dataclass(frozen=True)
class Content:
    """Hold the configuration and the layers of an image from any source.

    :ivar reference: its origin, for messages; for a registry's image with its digest
    :ivar size: bytes of its stored layers
    :raises Corrupt: the configuration is invalid, or does not match the layers
    """

    config: bytes
    layers: tuple[Layer, ...]
    reference: str
    size: int

    def __post_init__(self) -> None:
        if len(self.layers) != len(self.diff_ids):
            raise Corrupt(f"{self.reference}: its configuration names {len(self.diff_ids)} layers, but there are "
                          f"{len(self.layers)}")

    def proven(self) -> Self:
        """Return the same content from a source that is known to have the layers that it names."""
        return dataclasses.replace(self, layers=tuple(dataclasses.replace(layer, proven=True) for layer in self.layers))

    @property
    def image(self) -> str:
        """Return the engine's id of the image."""
        return digests.of(self.config)

    @property
    def diff_ids(self) -> tuple[str, ...]:
        return diff_ids(self.config, self.reference)

    def require(self, architecture: str) -> None:
        """Raise WrongArchitecture if the image would not run on the datastore's machines."""
        found = parsed(self.config, self.reference)
        if (found.get("os"), found.get("architecture")) != ("linux", architecture):
            raise WrongArchitecture(f"{self.reference} is for {found.get('os')}/{found.get('architecture')}, but this "
                                    f"datastore's nodes are linux/{architecture} (ONEDOCK_ARCHITECTURE)")


def diff_ids(config: bytes, what: str) -> tuple[str, ...]:
    """Return the digests of an image's unpacked layers, lowest first."""
    rootfs = parsed(config, what).get("rootfs")
    ids = rootfs.get("diff_ids") if isinstance(rootfs, dict) else None
    if not isinstance(ids, list) or not all(isinstance(one, str) and digests.DIGEST.fullmatch(one) for one in ids):
        raise Corrupt(f"{what}: its configuration does not name its layers (rootfs.diff_ids)")
    if len(ids) > LAYERS_LIMIT:
        raise BadInput(f"{what} has {len(ids)} layers, more than {LAYERS_LIMIT}")
    return tuple(ids)


def parsed(data: bytes, what: str) -> Mapping[str, Any]:
    """Parse a JSON object; raise Corrupt on anything else."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Corrupt(f"{what}: a part that should be JSON is not") from error
    if not isinstance(found, dict):
        raise Corrupt(f"{what}: a part that should be a JSON object is not")
    return found


def own_architecture() -> str:
    machine = platform.machine()
    return ARCHITECTURES.get(machine, machine)


def manifest(data: bytes, read: Callable[[str], bytes], architecture: str, what: str) -> Mapping[str, Any]:
    """Return the manifest of an index, or of an index of indexes; ``read`` returns and verifies a digest's content."""
    for _ in range(INDEX_DEPTH):
        found = parsed(data, what)
        if "manifests" not in found:
            return found
        data = read(chosen(found, architecture, what)["digest"])
    raise Corrupt(f"{what}: its indexes are nested more than {INDEX_DEPTH} deep")


def chosen(index: Mapping[str, Any], architecture: str, what: str) -> Mapping[str, Any]:
    """Return an index's single manifest for this architecture (image-index.md), or raise WrongArchitecture."""
    manifests = descriptors(index.get("manifests"), what)
    found = [one for one in manifests if platform_of(one) in (f"linux/{architecture}", None)]
    if len({name_of(one) for one in found}) > 1 and (count := len({one["digest"] for one in found})) > 1:
        raise BadInput(f"{what} contains {count} images; create an archive with only the wanted one")
    if not found:
        others = ", ".join(sorted({str(platform_of(one)) for one in manifests})) or "none"
        raise WrongArchitecture(f"{what} has images for {others}, but none for linux/{architecture}, the architecture "
                                "of this datastore's nodes (ONEDOCK_ARCHITECTURE)")
    return found[0]


def sif(what: str) -> str:
    return (f"{what} is Apptainer's SIF, a file system of its own form, and no container image: name the image that it "
            "was built from, or build one from its definition")


def name_of(descriptor: Mapping[str, Any]) -> str | None:
    """Return the name of the image in an archive (annotations.md)."""
    found = descriptor.get("annotations")
    return str(found.get("org.opencontainers.image.ref.name")) if isinstance(found, dict) else None


def platform_of(descriptor: Mapping[str, Any]) -> str | None:
    found = descriptor.get("platform")
    return f"{found.get('os')}/{found.get('architecture')}" if isinstance(found, dict) else None


def descriptors(found: Any, what: str) -> Sequence[Mapping[str, Any]]:
    """Return content descriptors (descriptor.md), each with a digest and a size in bytes."""
    if not isinstance(found, list) or not all(
            isinstance(one, dict) and isinstance(one.get("digest"), str) and digests.DIGEST.fullmatch(one["digest"])
            and isinstance(one.get("size"), int) and one["size"] >= 0 for one in found):
        raise Corrupt(f"{what}: a list of its parts is damaged, or uses digests other than sha256")
    return found


def layers_of(manifest: Mapping[str, Any], what: str) -> tuple[Mapping[str, Any], Sequence[Mapping[str, Any]]]:
    """Return a manifest's configuration and layers (manifest.md, Docker's schema 2); raise BadInput on older ones."""
    if "fsLayers" in manifest:
        raise BadInput(f"{what} has a manifest of schema 1, which Docker deprecated in 2017: push it again")
    (config,) = descriptors([manifest.get("config")], what)
    layers = descriptors(manifest.get("layers"), what)
    types = [str(one.get("mediaType", "")) for one in (config, *layers)]
    if any("sylabs.sif" in one for one in types):
        raise BadInput(sif(what))
    if any(one.get("urls") for one in layers):
        raise BadInput(f"{what} has layers that are not in its registry (foreign layers)")
    return config, layers
