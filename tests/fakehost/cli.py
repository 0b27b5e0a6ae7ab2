# SPDX-License-Identifier: Apache-2.0
"""The command line of tools/fakehost."""

import argparse
import os
import sys
from collections.abc import Callable, Sequence

from tests.fakehost import registry, run
from tests.fakehost.description import HOSTS, DescriptionError, HostDescription, load

_EXAMPLES = """\
examples:
  tools/fakehost -- containerhost list                     the small host, for one command
  tools/fakehost --host dgx -- bash                        a shell on a node with eight GPUs
  tools/fakehost --host my.yaml --name lab --detach        a host that stays ...
  tools/fakehost --join lab -- lxc list                    ... is used ...
  tools/fakehost --stop lab                                ... and ended
"""


def main(arguments: Sequence[str]) -> int:
    """Run the command line; returns the exit status."""
    options = parse(arguments)
    if os.geteuid() != 0:
        print("fakehost: this makes namespaces and mounts in them, which needs root", file=sys.stderr)
        return run.FAILED
    try:
        return _dispatch(options)
    except (DescriptionError, registry.RegistryError, OSError) as error:
        print(f"fakehost: {error}", file=sys.stderr)
        return run.FAILED
    except run.CommandError as error:
        print(f"fakehost: {error}", file=sys.stderr)
        return run.NOT_FOUND


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    known = ", ".join(sorted(path.stem for path in HOSTS.glob("*.yaml")))
    parser = argparse.ArgumentParser(
        prog="fakehost",
        description="Run a command on an emulated host: private namespaces in which /sys, /proc and /dev show GPUs and "
        "network cards that this machine does not have, with real network interfaces. Ends with the command.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--host", default="small", help=f"a description: a YAML file, or one of {known} (default: small)"
    )
    parser.add_argument("--name", help="register the host under this name, for --join and --stop")
    parser.add_argument("--detach", action="store_true", help="leave the host running, without a command")
    parser.add_argument("--join", metavar="NAME", help="run the command on the running host of this name")
    parser.add_argument("--stop", metavar="NAME", help="end the running host of this name and all that runs on it")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND")
    options = parser.parse_args(arguments)
    if options.command[:1] == ["--"]:
        del options.command[0]
    if options.stop or options.detach:
        if options.command:
            parser.error("--stop and --detach take no command")
        if options.detach and not options.name:
            parser.error("--detach needs a --name to find the host by")
    elif not options.command or not options.command[0]:
        parser.error("no command, or an empty word in its place; give one after --")
    return options


def _dispatch(options: argparse.Namespace) -> int:
    if options.stop:
        registry.stop(options.stop)
        return 0
    if options.join:
        return registry.join(options.join, options.command)
    host = load(options.host)
    if options.detach:
        return _detach(host, options.name)
    if options.name:
        return _run_named(host, options.name, options.command)
    return run.run(host, options.command)


def _run_named(
    host: HostDescription,
    name: str,
    command: Sequence[str],
    ready: Callable[[], None] = lambda: None,
    detached: bool = False,
) -> int:
    registration = registry.register(name)

    def announce(init: int) -> None:
        registration.ready(init)
        ready()

    try:
        return run.run(host, command, announce, detached)
    finally:
        registration.release()


def _detach(host: HostDescription, name: str) -> int:
    """Start a host in the background; return when it stands, or has failed."""
    receive, send = os.pipe()
    if os.fork() == 0:
        os.close(receive)
        os.setsid()
        try:
            os._exit(_run_named(host, name, ["sleep", "infinity"], lambda: _tell(send), detached=True))
        except (OSError, registry.RegistryError) as error:
            print(f"fakehost: {error}", file=sys.stderr)
            os._exit(run.FAILED)
    os.close(send)
    return 0 if os.read(receive, 1) else run.FAILED


def _tell(ready: int) -> None:
    os.write(ready, b"1")
    os.close(ready)
