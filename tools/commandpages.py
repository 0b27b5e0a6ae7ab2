# SPDX-License-Identifier: Apache-2.0
"""Write a manual page for each command of the environment that this runs in, and completion for those with subcommands.

    python tools/commandpages.py VERSION EXTRAS MAN_DIRECTORY COMPLETION_DIRECTORY

Prints the names of the commands. What belongs to an extra that is not of the EXTRAS does not work and is left out.
"""

import inspect
import re
import subprocess
import sys
from importlib.metadata import EntryPoint, distribution
from pathlib import Path

import click
from click.shell_completion import BashComplete
from click_man.core import write_man_pages

PACKAGE = "nova-lxd-ext"
SUBCOMMANDS = re.compile(r"^usage:.*?\{([a-z,-]+)\}", re.S)  # as argparse writes them
# Of these --help is runc's.
RUNTIMES = {"containerhost-ociruntime": ("containerhost-docker-runtime",)}


def main(version: str, extras: str, man: Path, completions: Path) -> None:
    for point in distribution(PACKAGE).entry_points.select(group="console_scripts"):
        if not set(point.extras) <= set(extras.split(",")):
            continue
        command = point.load()
        if isinstance(command, click.Command):
            write_man_pages(point.name, command, version=version, target_dir=str(man))
            completion = BashComplete(command, {}, point.name, f"_{point.name.replace('-', '_').upper()}_COMPLETE")
            (completions / point.name).write_text(completion.source())
        else:
            more = help_of(point)
            (man / f"{point.name}.1").write_text(page(point, version, more))
            if subcommands := SUBCOMMANDS.search(more):
                (completions / point.name).write_text(
                    f'complete -o default -W "{subcommands[1].replace(",", " ")}" {point.name}\n')
        print(point.name)
        for other in RUNTIMES.get(point.name, ()):
            (man / f"{other}.1").write_text(f".so man1/{point.name}.1\n")
            print(other)


def help_of(point: EntryPoint) -> str:
    """Return what a command made without click prints for --help."""
    if point.name in RUNTIMES:
        return documentation(point)[1]
    return subprocess.run((Path(sys.executable).with_name(point.name), "--help"), capture_output=True, text=True,
                          check=True, timeout=60).stdout


def documentation(point: EntryPoint) -> tuple[str, str]:
    """Return the first paragraph of a module's docstring, and the others."""
    summary, _, more = (inspect.getdoc(sys.modules[point.module]) or "").partition("\n\n")
    return summary, more


def page(point: EntryPoint, version: str, more: str) -> str:
    """Write the page of a command made without click.

    :param more: what it prints for --help
    """
    summary, _ = documentation(point)
    return "\n".join((f'.TH "{point.name.upper()}" "1" "" "{version}" "{PACKAGE}"', ".SH NAME",
                      f"{point.name} \\- {escaped(brief(summary))}", ".SH DESCRIPTION", ".nf",
                      escaped(more.rstrip()), ".fi", ""))


def brief(summary: str) -> str:
    return re.split(r"[:.,;]", " ".join(summary.replace("``", "").split()))[0]


def escaped(text: str) -> str:
    """Escape what roff would take for a request or an escape."""
    return "\n".join(f"\\&{line}" if line.startswith((".", "'")) else line
                     for line in text.replace("\\", "\\e").replace("-", "\\-").splitlines())


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4]))
