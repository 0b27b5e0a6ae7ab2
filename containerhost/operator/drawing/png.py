# SPDX-License-Identifier: Apache-2.0
"""Convert a drawing to PNG by the library cairosvg, which the extra ``picture`` installs."""

from containerhost.errors import UnsupportedOnHost

SCALE = 1.5


def from_svg(content: bytes) -> bytes:
    """Return the picture as PNG.

    :raises UnsupportedOnHost: the library is not installed
    """
    try:
        import cairosvg  # noqa: PLC0415  (an extra)
    except (ImportError, OSError) as error:  # OSError: its library libcairo is missing
        raise UnsupportedOnHost(f"PNG needs cairosvg, which cannot be used here ({error}): install "
                                "nova-lxd-ext[picture] and the package libcairo2, or use --svg") from error
    return bytes(cairosvg.svg2png(bytestring=content, scale=SCALE))
