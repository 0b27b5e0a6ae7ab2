# SPDX-License-Identifier: Apache-2.0
"""Write the server's identity and the tenant's user data as cloud-init documents. Pure.

LXD and Incus images read these from the keys the engine puts them under; the daemon itself prepends its own
``instance-id`` and ``local-hostname`` to the metadata (LXD documentation, cloud-init and devlxd), and YAML parsers
use the last of duplicate keys. So the document must be block-style YAML that can follow other lines.

The host name: the kernel's is the container's LXD name (``instance-0000002a``) until cloud-init sets the server's.
LXD has no key for it, and an image without cloud-init keeps LXD's name: other ways would write into the tenant's
image or put tenant text into raw configuration.
"""

import yaml
from nova import objects
from oslo_serialization import base64

from containerhost import errors
from containerhost.engines.mimepart import mime_part
from containerhost.engines.spec import CloudInit

GZIP_MAGIC = b"\x1f\x8b"


def documents(instance: objects.Instance) -> CloudInit:
    """Return the server's cloud-init documents.

    :raises SpecError: the user data is not base64 text
    """
    return CloudInit(meta_data=_meta_data(instance), user_data=_user_data(instance))


def _meta_data(instance: objects.Instance) -> str:
    document: dict[str, object] = {"instance-id": instance.uuid, "local-hostname": instance.hostname}
    if instance.key_data:
        document["public-keys"] = [instance.key_data.strip()]
    return yaml.safe_dump(document, sort_keys=False, default_flow_style=False, width=2**20, allow_unicode=True)


def _user_data(instance: objects.Instance) -> str | None:
    """Return the tenant's user data. Configuration is text, so other data (a gzipped document) becomes a MIME part."""
    if not instance.user_data:
        return None
    try:
        content: bytes = base64.decode_as_bytes(instance.user_data)  # as lenient as nova's API
    except TypeError as error:
        raise errors.SpecError(f"The server's user data is not valid base64: {error}.") from error
    try:
        return content.decode()
    except UnicodeDecodeError:
        return mime_part("application/gzip" if content.startswith(GZIP_MAGIC) else "application/octet-stream", content)
