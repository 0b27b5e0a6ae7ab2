# SPDX-License-Identifier: Apache-2.0
"""Map the names of processor architectures to nova's."""

from nova import exception
from nova.objects.fields import Architecture

# LXD's names (lxd/shared/osarch) that nova does not know.
SYNONYMS = {"arm64": "aarch64", "armhf": "armv7l", "armv8l": "armv7l", "ppc64el": "ppc64le"}


def canonical(name: str) -> str:
    """Return nova's name of an architecture; one unknown to nova is returned in lower case."""
    name = SYNONYMS.get(name.lower(), name.lower())
    try:
        return str(Architecture.canonicalize(name))
    except exception.InvalidArchitectureName:
        return name
