# SPDX-License-Identifier: Apache-2.0
"""The parsers of the programs that the documentation names: this project's own, and the openstack client."""

import argparse
import contextlib
import functools
import importlib
import io
import os
import re
import runpy
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import distribution
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import click
from openstackclient.shell import OpenStackShell
from oslo_config import cfg
from oslo_upgradecheck import upgradecheck

from tests.fakehost import cli as fakehost
from tests.manual.pages import ROOT

COMMANDS = {point.name: point for point in distribution("nova-lxd-ext").entry_points.select(group="console_scripts")}
# Tools that end in a command line of Python's.
TOOLS = {"tools/demo": "tools.showcase.__main__", "tools/opennebula": "tools.oned.__main__",
         "tools/devstack": "tools.devstackrun.__main__"}
# Options that a tool adds to every subcommand.
GIVEN = {("ansible",): ("--package", "FILE")}
# Their words are other programs'.
FREE = {"containerhost-docker-runtime", "containerhost-ociruntime", "lxdone-monitor", "onedock-monitor",
        "tools/overlay"}
INCOMPLETE = re.compile(r"arguments are required|expected .*argument")
WORD = re.compile(r"[a-z][a-z0-9-]*$|--[a-z]")


class Wrong(Exception):
    """A command that its program does not take."""


class Incomplete(Wrong):
    """A command whose program wants more words: prose may name one so."""


def known(program: str) -> bool:
    return _own(program) is not None or program == "openstack"


def check(words: Sequence[str]) -> None:
    """Parse a command as its program does, and run nothing.

    :raises Wrong: the program refuses it
    """
    program, arguments = words[0], list(words[1:])
    own = _own(program)
    if program == "openstack":
        _argparse(lambda: _openstack(arguments))
    elif own in COMMANDS and own not in FREE:
        _command(own, arguments)
    elif own == "tools/fakehost":
        _argparse(lambda: fakehost.parse(arguments))
    elif own and own not in FREE:
        _tool(own, arguments)


def _tool(path: str, arguments: list[str]) -> None:
    if arguments[:1] == ["exec"]:
        del arguments[1:]  # a separate command
    if path in TOOLS and arguments[:1] not in (["exec"], ["opennebula"]):
        _click(importlib.import_module(TOOLS[path]).main, [*arguments, *GIVEN.get(tuple(arguments[:1]), ())])
    elif path.startswith(("bench/", "examples/drain/")):
        _script(path, arguments)
    else:
        _text(path, arguments)


def _own(program: str) -> str | None:
    """Return the name of a program of this project: of a command, or its path in the repository."""
    name = Path(program).name
    if name in COMMANDS:
        return name
    path = program.removeprefix("./")
    return path if path.startswith(("tools/", "bench/", "examples/")) and (ROOT / path).is_file() else None


def _command(name: str, arguments: list[str]) -> None:
    loaded = COMMANDS[name].load()
    if isinstance(loaded, click.Command):
        return _click(loaded, arguments)
    if name == "nova-lxd-ext-status":
        return _argparse(lambda: upgradecheck.main(cfg.ConfigOpts(), "nova", Unchecked(), arguments))
    if name == "containerhost-guest":
        return _argparse(lambda: loaded(arguments))
    return _text(f"{name}/cli.py", arguments[:1])  # lxdone, onedock: the words that oned's scripts give follow


class Unchecked(upgradecheck.UpgradeCommands):
    """Checks of which none is run."""

    def check(self) -> int:
        return 0


def _click(command: click.Command, arguments: list[str]) -> None:
    # A file that an option reads is taken for a directory that there is.
    exists = lambda kind, value, _param, _context: Path("/") if kind.type is Path else value  # noqa: E731
    with mock.patch.object(click.Command, "invoke", lambda _self, _context: None), \
            mock.patch.object(click.Path, "convert", exists), mock.patch.object(os, "geteuid", lambda: 0):
        try:
            command.main(arguments, prog_name=command.name, standalone_mode=False)
        except (click.MissingParameter, click.BadOptionUsage) as error:
            raise Incomplete(error.format_message()) from error
        except click.exceptions.NoArgsIsHelpError as error:
            raise Incomplete("wants a command") from error
        except click.ClickException as error:
            raise Wrong(error.format_message()) from error


def _argparse(parse: Callable[[], object]) -> None:
    """Call what makes a parser and parses by it; where it would go on to work, it ends."""
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said), _only_parsing():
        try:
            parse()
        except SystemExit as error:
            if error.code:
                words = said.getvalue().strip().splitlines()[-1]
                raise (Incomplete if INCOMPLETE.search(words) else Wrong)(words) from error
        except _Parsed:
            pass


class _Parsed(Exception):
    """A parser took the command."""


@contextlib.contextmanager
def _only_parsing() -> Iterator[None]:
    """End every program behind its parser."""
    whole = argparse.ArgumentParser.parse_args

    def parse(self: argparse.ArgumentParser, *arguments: object, **more: object) -> None:
        whole(self, *arguments, **more)  # type: ignore[call-overload]
        raise _Parsed

    with mock.patch.object(argparse.ArgumentParser, "parse_args", parse):
        yield


def _script(path: str, arguments: list[str]) -> None:
    with mock.patch.object(sys, "argv", [path, *arguments]), \
            mock.patch.object(sys, "path", [str((ROOT / path).parent), str(ROOT), *sys.path]):
        _argparse(lambda: runpy.run_path(str(ROOT / path), run_name="__main__"))


def _text(path: str, arguments: Sequence[str]) -> None:
    """Find the options and the first word in a program that has no parser."""
    text = (ROOT / path).read_text(encoding="utf-8")
    for word in (*arguments[:1], *(word for word in arguments[1:] if word.startswith("--"))):
        if WORD.match(word) and not re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", text):
            raise Wrong(f"{path} knows no {word}")


def _openstack(arguments: Sequence[str]) -> None:
    shell = _shell()
    _, rest = shell.parser.parse_known_args(arguments)
    try:
        factory, name, words = shell.command_manager.find_command(rest)
    except ValueError as error:
        raise Wrong(str(error)) from error
    factory(shell, SimpleNamespace()).get_parser(name).parse_args(words)


@functools.cache
def _shell() -> OpenStackShell:
    """Return the client with the commands of all services, without a cloud."""
    shell = OpenStackShell()
    for group in ("common", "compute.v2", "identity.v3", "image.v2", "network.v2", "volume.v3", "placement.v1"):
        shell.command_manager.add_command_group(f"openstack.{group}")
    return shell
