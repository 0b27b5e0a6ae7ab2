# SPDX-License-Identifier: Apache-2.0
"""Mirrors that the machine clones from, where it can reach no other."""

import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tools import debian

SERVICES = ("glance", "keystone", "neutron", "nova", "placement", "requirements")
TEMPEST = ("tempest", "os-test-images")
PLUGIN = "nova-lxd-ext"
BRANCH = "main"
DEPTH = "500"  # reaches the tag that pbr counts versions from


class SourceMissing(Exception):
    """A repository is not where it was looked for."""


def make(devstack: Path, directory: Path | None, checkout: Path, target: Path, say: Callable[[str], None],
         names: Sequence[str] = SERVICES) -> None:
    """Make mirrors of DevStack, of the services unless ``directory`` is None, and of the last commit of ``checkout``.

    A mirror that is there and has its repository's commit stays.

    :param names: of the services
    :raises SourceMissing: there is no such repository
    :raises debian.Failed: git failed
    """
    services = {name: find(directory, name) for name in names} if directory else {}
    for name, source in ({"devstack": devstack} | services).items():
        mirror(source.resolve(), target / "openstack" / f"{name}.git", say)
    # DevStack looks for a branch: a checkout may have any, or none.
    plugin = target / PLUGIN
    shutil.rmtree(plugin, ignore_errors=True)
    _git("clone", "--quiet", "--bare", "--single-branch", "--no-hardlinks", str(checkout), str(plugin))
    _git("-C", str(plugin), "update-ref", f"refs/heads/{BRANCH}", _commit(checkout))


def find(directory: Path, name: str) -> Path:
    """Return the repository ``name`` of a directory of repositories, bare or not.

    :raises SourceMissing: there is none
    """
    for path in _candidates(directory, name):
        if (path / "HEAD").exists() or (path / ".git").exists():
            return path
    raise SourceMissing(f"{directory} has no repository of {name}; looked for "
                        f"{', '.join(str(path) for path in _candidates(directory, name))}")


def mirror(source: Path, target: Path, say: Callable[[str], None]) -> None:
    """Clone the current branch, whole enough to be cloned from, also of a repository that lacks old objects."""
    if target.exists() and _commit(target) == _commit(source):
        return
    say(f"{source} is mirrored")
    shutil.rmtree(target, ignore_errors=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    branch = _git("-C", str(source), "symbolic-ref", "--short", "HEAD").strip()
    making = target.with_name(f"{target.name}-unfinished")
    shutil.rmtree(making, ignore_errors=True)
    _git("clone", "--quiet", "--bare", "--depth", DEPTH, "--branch", branch, f"file://{source}", str(making))
    making.rename(target)


def _candidates(directory: Path, name: str) -> Iterator[Path]:
    for parent in (directory / "openstack", directory):
        yield from (parent / name, parent / f"{name}.git")


def _commit(repository: Path) -> str:
    return _git("-C", str(repository), "rev-parse", "HEAD").strip()


def _git(*words: str) -> str:
    return debian.run(("git", "-c", "safe.directory=*", *words))
