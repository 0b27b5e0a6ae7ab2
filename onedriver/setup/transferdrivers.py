# SPDX-License-Identifier: Apache-2.0
"""Let OpenNebula's own transfer drivers copy the disks of a driver's running VMs.

Their scripts copy the disk of a running VM by libvirt or LXC, and refuse others. A marked line after the first one
calls the driver's own script, which handles the driver's VMs, and otherwise lets the script continue. These scripts
run on the front-end only.
"""

from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from onedriver.setup import conffile, stanza
from onedriver.setup.remotes import as_owner

SCRIPTS = ("cpds", "cpds.ssh", "prebackup_live", "snap_create_live", "snap_create_live.ssh")
#: Exit statuses of the driver's script. Every other one: the VM is none of its own, or it could not find out.
DONE, FAILED = 0, 100
#: By the end of a script's first line; HOOK is the driver's script, beside the directory of the one that calls it.
LINES = {
    "sh": f'"${{0%/*}}/../HOOK" "${{0##*/}}" "$@"; case $? in {DONE}) exit 0;; {FAILED}) exit 1;; esac',
    "ruby": 'system("#{__dir__}/../HOOK", File.basename($PROGRAM_NAME), *ARGV); '
            f"exit($?.exitstatus == {DONE}) if [{DONE}, {FAILED}].include?($?&.exitstatus)",
}


def install(remotes: Path, driver: str, transfers: Collection[str]) -> list[Path]:
    """Let OpenNebula's transfer drivers copy the disks of running VMs.

    :returns: the changes; none if the front-end does not have the drivers
    """
    def with_line(text: str) -> str:
        first, end, _ = text.partition("\n")
        language = language_of(first)
        if language is None or not end:
            return text
        return stanza.inserted(text, LINES[language].replace("HOOK", f"{driver}/live"), driver,
                               len(first) + 1)

    return changed(remotes, transfers, with_line)


def uninstall(remotes: Path, driver: str, transfers: Collection[str]) -> list[Path]:
    """Remove the driver from OpenNebula's transfer drivers, and return the changes."""
    return changed(remotes, transfers, lambda text: stanza.removed(text, driver))


def language_of(first: str) -> str | None:
    """Return the language of a script by its first line."""
    return next((language for language in LINES if first.startswith("#!") and first.endswith(language)), None)


def changed(remotes: Path, transfers: Collection[str], how: Callable[[str], str]) -> list[Path]:
    with as_owner(remotes):
        return [name for name, file in scripts(remotes, transfers) if conffile.change(file, how)]


def scripts(remotes: Path, transfers: Collection[str]) -> Iterator[tuple[Path, Path]]:
    """Yield each script's name below ``remotes`` and its file. One driver may be a link to another: each file once."""
    seen = set()
    for name in (Path("tm") / transfer / script for transfer in transfers for script in SCRIPTS):
        file = (remotes / name).resolve()
        if file.is_file() and file not in seen:
            seen.add(file)
            yield name, file
