# SPDX-License-Identifier: Apache-2.0
"""Define the options that several commands of ``containerhost`` share."""

import tempfile
from pathlib import Path

import click

from containerhost.allocation.store import DIRECTORY
from containerhost.linux import files
from containerhost.operator import dump


def _tree(context: click.Context, _: click.Parameter, path: Path) -> Path:
    """Return the directory to read; the output of `containerhost dump` is unpacked for the duration of the command."""
    if path.is_dir():
        return path
    directory = Path(context.with_resource(tempfile.TemporaryDirectory(prefix="containerhost-")))
    dump.restore(path, directory)
    return directory


root = click.option("--root", default="/", metavar="PATH", type=click.Path(exists=True, path_type=Path), callback=_tree,
                    help="Read a captured host instead of this one: a file that `containerhost dump` wrote, or a "
                         "directory with its sys, proc and dev.")
owners = click.option("--owners", "owners_directory", metavar="DIR", envvar="CONTAINERHOST_OWNERS",
                      type=click.Path(file_okay=False, path_type=Path),
                      help=f"Directory of the allocation records, if not {DIRECTORY} below the root; or what "
                           "CONTAINERHOST_OWNERS says.")
as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def write(path: Path, content: bytes) -> None:
    """Write an output file.

    :raises click.ClickException: it cannot be written
    """
    try:
        files.write_output(path, content)
    except OSError as error:
        raise click.ClickException(f"{path} cannot be written: {error.strerror}") from error


def directory(root_directory: Path, given: Path | None) -> Path:
    """Return the directory of the allocation records."""
    return given or root_directory / DIRECTORY.relative_to("/")
