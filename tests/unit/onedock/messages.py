# SPDX-License-Identifier: Apache-2.0
"""Write oned's message to a datastore's driver: the recorded one, with another image and datastore."""

from pathlib import Path
from xml.sax.saxutils import escape

from tests.unit.onedriver.samples import changed

BASE = "<BASE_PATH><![CDATA[/var/lib/one//datastores/101]]></BASE_PATH>"


def message(base: Path, image: dict[str, str] | None = None, safe: Path | None = None, **attributes: str) -> bytes:
    """:param image: elements of IMAGE with other texts
    :param safe: SAFE_DIRS
    :param attributes: more of the datastore's template
    """
    text = changed("datastore_cp.xml", (BASE, f"<BASE_PATH>{base.parent}//{base.name}</BASE_PATH>"),
                   ("<![CDATA[/var/tmp/images]]>", escape(str(safe or base.parent))),
                   ("<SAFE_DIRS>", "".join(f"<{key}>{escape(value)}</{key}>" for key, value in attributes.items())
                    + "<SAFE_DIRS>")).decode()
    begin, rest = text.split("<PERMISSIONS>", 1)
    for key, value in (image or {}).items():
        for old in (f"<{key}><![CDATA[]]></{key}>", f"<{key}><![CDATA[/var/tmp/images/disk.raw]]></{key}>",
                    f"<{key}>0</{key}>", f"<{key}>16</{key}>", f"<{key}>-1</{key}>"):
            rest = rest.replace(old, f"<{key}>{escape(value)}</{key}>", 1)
        if f"<{key}>{escape(value)}</{key}>" not in rest:
            raise AssertionError(f"the recorded image has no {key} that could be changed")
    return f"{begin}<PERMISSIONS>{rest}".encode()
