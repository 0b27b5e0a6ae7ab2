# SPDX-License-Identifier: Apache-2.0
"""Define the options that several commands of ``containerhost`` share."""

from pathlib import Path

import click

from containerhost.allocation.store import DIRECTORY

root = click.option("--root", default="/", metavar="DIR",
                    type=click.Path(exists=True, file_okay=False, path_type=Path),
                    help="Read a captured tree DIR/{sys,proc,dev} instead of this host.")
owners = click.option("--owners", "owners_directory", metavar="DIR", envvar="CONTAINERHOST_OWNERS",
                      type=click.Path(file_okay=False, path_type=Path),
                      help=f"Directory of the allocation records, if not {DIRECTORY} below the root; or what "
                           "CONTAINERHOST_OWNERS says.")
as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def directory(root_directory: Path, given: Path | None) -> Path:
    """Return the directory of the allocation records."""
    return given or root_directory / DIRECTORY.relative_to("/")
