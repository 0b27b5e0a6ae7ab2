# SPDX-License-Identifier: Apache-2.0
"""Set the password of a server's administrator, by the guest's own chpasswd.

The password is passed by standard input, not on a command line, which every process in the container could read, and
not into a log.
"""

import re

from nova import exception, objects

from containerhost.engines.contract import Engine, Executed

PROGRAM = "chpasswd"
TIMEOUT = 30  # s
NO_PROGRAM = 127
# useradd's default rule; a colon or a line break would change another user's password.
USER = re.compile(r"[a-z_][a-z0-9_-]{0,31}")
SHOWN = 200  # characters of chpasswd's output


def set_admin(engine: Engine, container: str, image: objects.ImageMeta, password: str) -> None:
    """Set the password of the image's ``os_admin_user``, otherwise of root.

    :raises SetAdminPasswdNotSupported: with what the guest or the request lacks; nova returns it to the user
    """
    user = image.properties.get("os_admin_user", "root")
    if not USER.fullmatch(user):
        raise refusal(f"the image's os_admin_user is {user!r}, which is not a user name")
    if not password or re.search(r"[\x00-\x1f\x7f]", password):
        raise refusal("a password has at least one character, and no line feed or other control character")
    done = engine.execute(container, [PROGRAM], f"{user}:{password}\n".encode(), timeout=TIMEOUT)
    if done.status:
        raise refusal(complaint(user, done, password))


def complaint(user: str, done: Executed, password: str) -> str:
    if done.status == NO_PROGRAM:
        return f"the guest has no {PROGRAM} (package passwd or shadow); use an image that has"
    said = done.output.decode("utf-8", "replace").replace(password, "***")
    printable = "".join(character if character.isprintable() else " " for character in said).strip()
    return f"the guest's {PROGRAM} did not take it for user {user} (status {done.status}): {printable[:SHOWN]}"


def refusal(reason: str) -> exception.SetAdminPasswdNotSupported:
    return exception.SetAdminPasswdNotSupported(f"The password was not set: {reason}")
