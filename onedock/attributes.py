# SPDX-License-Identifier: Apache-2.0
"""Read a template's attributes with the prefix DOCKER_ as typed values. Pure.

Words are split as by a shell, with quotes and backslashes, but without expansion, and no shell is used. Unknown
attributes are refused, not ignored.
"""

import dataclasses
import re
import shlex
from collections.abc import Collection, Mapping
from typing import Any

from containerhost.engines.spec import Health, Program
from onedriver.errors import BadInput, NotSupported
from onedriver.section import own_flag, restarts_to_migrate

PREFIX = "DOCKER_"
PROCESS_LIMIT = "DOCKER_PROCESS_LIMIT"
LIVE_MIGRATION = "DOCKER_LIVE_MIGRATION"
WORDS = 1000
PLAIN = re.compile(r"[^\x00-\x08\x0a-\x1f\x7f]*")
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
DIRECTORY = re.compile(r"/(?!(?:.*/)?\.\.(?:/|$))[^\x00-\x1f\x7f]{0,255}")
USER = re.compile(r"(?P<user>[a-z_][a-z0-9_-]{0,31}|[0-9]{1,10})(?::(?:[a-z_][a-z0-9_-]{0,31}|[0-9]{1,10}))?")
HOSTNAME = re.compile(r"(?=.{1,63}$)[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?")
SECONDS = re.compile(r"[1-9][0-9]{0,4}")
NO_CHECK = ("NONE",)

# Never, whatever an administrator lists: with one of these a container is no boundary any more.
CAPABILITIES_REFUSED = frozenset({"ALL", "SYS_ADMIN", "SYS_MODULE", "SYS_RAWIO", "SYS_PTRACE", "SYS_BOOT",
                                  "DAC_READ_SEARCH", "BPF", "PERFMON", "SYSLOG", "MAC_ADMIN", "MAC_OVERRIDE",
                                  "CHECKPOINT_RESTORE"})
CAPABILITY = re.compile(r"[A-Z][A-Z_]{2,30}")
SYSCTL = re.compile(r"(?P<key>(?:net|kernel\.(?:msg|sem|shm)|fs\.mqueue)[a-z0-9_.-]*)=(?P<value>[0-9 -]{1,100})")
NUMBER = re.compile(r"[1-9][0-9]{0,8}")
RAW = ("cap-add", "pids-limit", "shm-size", "sysctl")


@dataclasses.dataclass(frozen=True)
class Attributes:
    """Hold a template's settings for its container; ``raw`` are Docker's own, as permitted by the administrator."""

    program: Program
    environment: Mapping[str, str]
    read_only: bool
    raw: Mapping[str, Any]


def read(own: Mapping[str, str], context: Mapping[str, str], allowed: Collection[str] = ()) -> Attributes:
    """Read the attributes with the prefix DOCKER_.

    :param own: the attributes with the prefix DOCKER_
    :param context: the VM's; it may name the host
    :param allowed: raw options that the administrator permits
    :raises BadInput, NotSupported: an attribute is invalid, or not permitted
    """
    known = {"DOCKER_ENTRYPOINT", "DOCKER_COMMAND", "DOCKER_WORKDIR", "DOCKER_USER", "DOCKER_HOSTNAME",
             "DOCKER_ENVIRONMENT", "DOCKER_READ_ONLY", "DOCKER_RAW", "DOCKER_HEALTH_COMMAND", "DOCKER_HEALTH_INTERVAL",
             "DOCKER_HEALTH_TIMEOUT", "DOCKER_HEALTH_START", "DOCKER_HEALTH_RETRIES", PROCESS_LIMIT,
             LIVE_MIGRATION}
    restarts_to_migrate(own, LIVE_MIGRATION)
    unknown = sorted(own.keys() - known)
    if unknown:
        raise NotSupported(f"the template has {', '.join(unknown)[:200]}; the supported ones of Docker are "
                           f"{', '.join(sorted(known))}")
    hostname = "DOCKER_HOSTNAME" if own.get("DOCKER_HOSTNAME") else "SET_HOSTNAME"
    program = Program(
        entrypoint=words(own, "DOCKER_ENTRYPOINT"), command=words(own, "DOCKER_COMMAND"),
        directory=matching(own, "DOCKER_WORKDIR", DIRECTORY, "an absolute path without .."),
        user=matching(own, "DOCKER_USER", USER, "a user, or user:group, by name or number"), health=health(own),
        hostname=matching({**context, **own}, hostname, HOSTNAME, "a host's name"))
    return Attributes(program, environment(own), own_flag(own, "DOCKER_READ_ONLY"), raw(own, allowed))


def words(own: Mapping[str, str], key: str) -> tuple[str, ...] | None:
    """Split an attribute into words; None if it is missing."""
    text = own.get(key, "")
    if not text:
        return None
    try:
        found = tuple(shlex.split(text))
    except ValueError as error:
        raise BadInput(f"{key} is {text[:80]!r}, which cannot be split into words: {str(error).lower()}") from error
    if len(found) > WORDS or not all(PLAIN.fullmatch(word) for word in found):
        raise BadInput(f"{key} must be at most {WORDS} words without control characters")
    return found


def matching(values: Mapping[str, str], key: str, pattern: re.Pattern[str], what: str) -> str | None:
    value = values.get(key, "")
    if value and not pattern.fullmatch(value):
        raise BadInput(f"{key} is {value[:80]!r}, but must be {what}")
    return value or None


def environment(own: Mapping[str, str]) -> dict[str, str]:
    found = {}
    for word in words(own, "DOCKER_ENVIRONMENT") or ():
        key, sign, value = word.partition("=")
        if not sign or not VARIABLE.fullmatch(key):
            raise BadInput(f"DOCKER_ENVIRONMENT has {word[:80]!r}, but expects words NAME=value")
        found[key] = value
    return found


def health(own: Mapping[str, str]) -> Health | None:
    """Return the health check; the single word NONE disables the image's."""
    command = words(own, "DOCKER_HEALTH_COMMAND")
    numbers = {key: seconds and int(seconds) for key in ("INTERVAL", "TIMEOUT", "START", "RETRIES")
               if (seconds := matching(own, f"DOCKER_HEALTH_{key}", SECONDS, "a whole number of 1 or more"))}
    if command is None:
        if numbers:
            raise BadInput(f"DOCKER_HEALTH_{min(numbers)} sets an interval, but DOCKER_HEALTH_COMMAND is "
                           "missing")
        return None
    return Health(() if command == NO_CHECK else command,
                  **{key.lower(): number for key, number in numbers.items() if number})


def raw(own: Mapping[str, str], allowed: Collection[str]) -> dict[str, Any]:
    """Return the allowed raw options, as keys and values of Docker's host configuration."""
    found: dict[str, Any] = {}
    for word in words(own, "DOCKER_RAW") or ():
        name, _, value = word.partition("=")
        if name not in RAW:
            raise NotSupported(f"DOCKER_RAW has {word[:80]!r}; an administrator can allow {', '.join(RAW)}")
        if name not in allowed:
            raise NotSupported(f"DOCKER_RAW has {name}, which is not allowed on this host; its administrator can allow "
                               "it with raw_options in /etc/onedock.toml")
        if name == "cap-add":
            found.setdefault("CapAdd", []).append(capability(value))
        elif name == "sysctl":
            match = SYSCTL.fullmatch(value)
            if match is None:
                raise BadInput(f"DOCKER_RAW has {word[:80]!r}, but must name a setting of the container's own, such as "
                               "sysctl=net.core.somaxconn=1024")
            found.setdefault("Sysctls", {})[match["key"]] = match["value"]
        elif not NUMBER.fullmatch(value):
            raise BadInput(f"DOCKER_RAW has {word[:80]!r}, but must have a whole number of 1 or more")
        else:
            found |= {"PidsLimit": int(value)} if name == "pids-limit" else {"ShmSize": int(value) << 20}
    return found


def capability(text: str) -> str:
    name = text.upper().removeprefix("CAP_")
    if not CAPABILITY.fullmatch(name) or name in CAPABILITIES_REFUSED:
        raise NotSupported(f"DOCKER_RAW has cap-add={text[:80]}, which is not permitted for containers")
    return name
