# SPDX-License-Identifier: Apache-2.0
"""Small images of containers, whole and damaged, in every form that a datastore takes them in."""

import gzip
import hashlib
import io
import json
import tarfile
from pathlib import Path
from typing import Any

from onedock.datastore.content import own_architecture


def digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def tarball(files: dict[str, bytes], links: dict[str, str] | None = None) -> bytes:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
        for name, target in (links or {}).items():
            member = tarfile.TarInfo(name)
            member.type, member.linkname = tarfile.SYMTYPE, target
            archive.addfile(member)
    return raw.getvalue()


def compressed(layer: bytes) -> bytes:
    """Compress a layer, with one result at any time."""
    return gzip.compress(layer, mtime=0)


class Image:
    """:ivar layers: unpacked tarballs
    """

    def __init__(self, *contents: str, architecture: str | None = None) -> None:
        self.layers = [tarball({"file": content.encode()}) for content in contents or ("one", "two")]
        self.architecture = architecture or own_architecture()

    @property
    def config(self) -> bytes:
        return json.dumps({"os": "linux", "architecture": self.architecture, "config": {"Cmd": ["/bin/sh"]},
                           "rootfs": {"type": "layers", "diff_ids": [digest(layer) for layer in self.layers]}}).encode()

    @property
    def id(self) -> str:
        return digest(self.config)

    def saved(self, changed: dict[str, bytes] | None = None, links: dict[str, str] | None = None,
              images: Any = None) -> bytes:
        """Return what `docker save` writes.

        :param changed: files with another content
        :param images: instead of what stands in its manifest
        """
        paths = [f"{number}/layer.tar" for number in range(len(self.layers))]
        config = f"{self.id.partition(':')[2]}.json"
        manifest = [{"Config": config, "RepoTags": ["tool:1"], "Layers": paths}]
        files = {config: self.config, **dict(zip(paths, self.layers, strict=True)),
                 "manifest.json": json.dumps(manifest if images is None else images).encode()}
        files |= changed or {}
        return tarball({name: content for name, content in files.items() if name not in (links or {})}, links)

    def blobs(self, pack: Any = compressed) -> tuple[dict[str, bytes], dict[str, Any]]:
        """Return what a registry or an OCI layout has of it, by digest; and its manifest."""
        packed = [pack(layer) for layer in self.layers]
        manifest = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
                    "config": descriptor(self.config, "application/vnd.oci.image.config.v1+json"),
                    "layers": [descriptor(layer, "application/vnd.oci.image.layer.v1.tar+gzip") for layer in packed]}
        return {digest(data): data for data in (self.config, *packed)}, manifest

    def layout(self, pack: Any = compressed) -> dict[str, bytes]:
        """The files of an OCI layout."""
        blobs, manifest = self.blobs(pack)
        data = json.dumps(manifest).encode()
        blobs[digest(data)] = data
        index = {"schemaVersion": 2, "manifests": [
            descriptor(data, "application/vnd.oci.image.manifest.v1+json")
            | {"platform": {"os": "linux", "architecture": self.architecture}}]}
        return {"index.json": json.dumps(index).encode(), "oci-layout": b'{"imageLayoutVersion": "1.0.0"}',
                **{f"blobs/{name.replace(':', '/')}": content for name, content in blobs.items()}}


def descriptor(data: bytes, media_type: str) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": digest(data), "size": len(data)}


def write(directory: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_bytes(content)
    return directory
