# SPDX-License-Identifier: Apache-2.0
"""Debian trees by mmdebstrap, of packages from where this machine's apt has Debian's from."""

import subprocess
from collections.abc import Sequence
from pathlib import Path


class Failed(Exception):
    """With the words of the tool that failed."""


def release() -> str:
    """Return the release of this machine.

    :raises Failed: this machine is no Debian: its apt has no Debian packages
    """
    text = Path("/etc/os-release").read_text(encoding="utf-8")
    values = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    if values.get("ID") != "debian":
        raise Failed(f"trees are made of this machine's Debian packages, but it is {values.get('PRETTY_NAME')}")
    return values["VERSION_CODENAME"]


def sources() -> list[str]:
    """Return this machine's sources of Debian packages, one a line as in sources.list(5).

    :raises Failed: it has none
    """
    told = run(["apt-get", "indextargets", "--format", "deb $(REPO_URI) $(RELEASE) $(COMPONENT)",
                "Created-By: Packages", "Origin: Debian"])
    found = [line for line in dict.fromkeys(told.splitlines()) if not line.split()[2].endswith("-backports")]
    if not found:
        raise Failed("apt knows of no Debian packages on this machine: run apt-get update")
    return found


def backports(archives: Sequence[str], codename: str) -> list[str]:
    return [line.replace(f" {codename} ", f" {codename}-backports ") for line in archives if f" {codename} " in line]


def debootstrap(tree: Path, codename: str, archives: Sequence[str], packages: Sequence[str], *options: str) -> None:
    settings = [f"--aptopt={option}" for option in ('APT::Install-Recommends "false"', *options)]
    # In a mount namespace of its own: what mmdebstrap mounts in the tree ends with it, however it ends. dpkg need not
    # wait for the disk after each file: an unfinished tree is thrown away. A large one takes a third of the time.
    run(["unshare", "--mount", "mmdebstrap", "--quiet", "--variant=minbase", "--mode=root",
         f"--include={','.join(packages)}", *settings, "--dpkgopt=force-unsafe-io",
         *(f"--dpkgopt=path-exclude=/usr/share/{part}/*" for part in ("doc", "man", "locale")),
         codename, str(tree), "-"], "\n".join(archives) + "\n")


def run(command: Sequence[str], given: str = "") -> str:
    done = subprocess.run(command, input=given, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Failed(f"`{' '.join(command)}` failed:\n{done.stderr[-4000:]}")
    return done.stdout
