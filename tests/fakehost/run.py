# SPDX-License-Identifier: Apache-2.0
"""Runs a command on an emulated host, whose namespaces end with it and leave nothing behind.

The process that was started stays outside and waits; its child is PID 1 of a PID namespace, so that everything that
runs on the emulated host is killed with it, however it ends.
"""

import logging
import os
import signal
import stat
import sys
import time
from collections.abc import Callable, Mapping, Sequence

from tests.fakehost import cgroups, control, controlserver, linux, namespace
from tests.fakehost.attributes import Attributes
from tests.fakehost.description import DescriptionError, HostDescription
from tests.fakehost.functions import functions
from tests.fakehost.interfaces import Interfaces
from tests.fakehost.machine import Machine
from tests.fakehost.writer import LiveWriter

LOG = logging.getLogger(__name__)

_GRACE = 5  # seconds that what is left at the end has between SIGTERM and SIGKILL
_READY = b"ready"
_FORWARDED = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)
_FROM_TERMINAL = 0x80  # SI_KERNEL
FAILED = 125  # exit status when the host could not be made, as env and timeout have it
NOT_FOUND = 127


class CommandError(RuntimeError):
    """The command could not be started."""


def run(
    host: HostDescription,
    command: Sequence[str],
    ready: Callable[[int], None] = lambda pid: None,
    detached: bool = False,
) -> int:
    """Make the host, run the command on it, end the host.

    :param ready: called when the host stands, with the process id of its PID 1
    :param detached: let go of standard input, output and error then
    :returns: the command's exit status; 128 and the number when a signal ended it
    """
    hold_signals()
    groups = cgroups.make()
    try:
        receive, send = os.pipe()
        linux.unshare(linux.CLONE_NEWPID)
        child = os.fork()
        if child == 0:
            os.close(receive)
            os._exit(_guarded(lambda: _inside(host, command, groups, send, detached)))
        os.close(send)
        if os.read(receive, len(_READY)) == _READY:
            ready(child)
            if detached:
                _let_go()
        return attend(child)
    finally:
        cgroups.remove(groups)


def _inside(
    host: HostDescription, command: Sequence[str], groups: Sequence[cgroups.Group], ready: int, detached: bool
) -> int:
    linux.die_with_parent(signal.SIGKILL)
    host = namespace.fit(host)
    namespace.enter(groups)
    present = functions(host)
    namespace.build(host, present, groups)
    attributes = Attributes(namespace.ATTRIBUTES)
    writer = LiveWriter(attributes)
    machine = Machine(writer, Interfaces(namespace.REAL_SYS, namespace.SCRATCH))
    namespace.show_kernel_log(attributes.add(machine.kernel_log.attribute()))
    namespace.show_vf_settings(attributes.add(machine.vf_attribute()))
    writer.read, writer.act = machine.read_action, machine.write_action
    namespace.write_fixed(writer, host, present)
    machine.start(present)
    controlserver.serve(namespace.CONTROL, {name: getattr(machine, name) for name in controlserver.CALLS})
    if detached:
        _let_go()
    os.write(ready, _READY)
    os.close(ready)
    status = attend(start(command))
    _end_all()
    return status


def start(command: Sequence[str]) -> int:
    """Start a command in the environment of the emulated host that this process is in; its process id."""
    try:
        environment = _environment(os.environ)
        return os.posix_spawnp(command[0], [*command], environment, setsigmask=(), setsigdef=_IGNORED_BY_PYTHON)
    except OSError as error:
        raise CommandError(f"cannot run {command[0]}: {error.strerror}") from error


def _environment(outer: Mapping[str, str]) -> dict[str, str]:
    path = outer.get("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
    return {**outer, "PATH": f"{namespace.BIN}:{path}", control.ENVIRONMENT: namespace.CONTROL}


def hold_signals() -> None:
    """Keep signals waiting for ``attend``, so that none is lost before it is known whom to pass it on to."""
    signal.pthread_sigmask(signal.SIG_BLOCK, (*_FORWARDED, signal.SIGCHLD))


def attend(pid: int) -> int:
    """Wait for a child, passing on what asks this program to end and reaping others' children as a PID 1 must.

    :returns: the child's exit status as a shell reports it
    """
    while True:
        received = signal.sigwaitinfo((*_FORWARDED, signal.SIGCHLD))
        if received.si_signo == signal.SIGCHLD:
            status = _reap().get(pid)
            if status is not None:
                code = os.waitstatus_to_exitcode(status)
                return code if code >= 0 else 128 - code
        elif received.si_code != _FROM_TERMINAL:  # Ctrl-C reaches the child by itself
            os.kill(pid, received.si_signo)


def _reap() -> dict[int, int]:
    """Process ids of all children that have ended -> their wait status."""
    ended = {}
    try:
        while (each := os.waitpid(-1, os.WNOHANG)) != (0, 0):
            ended[each[0]] = each[1]
    except ChildProcessError:
        return ended  # these were all
    return ended


def _let_go() -> None:
    """Redirect the standard streams, so that their readers need not wait for this process's end; log files stay."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.dup2(nothing, descriptor)
    os.close(nothing)


def _end_all() -> None:
    """Ask what is left to end; the kernel kills the rest together with this PID 1."""
    try:
        os.kill(-1, signal.SIGTERM)
        deadline = time.monotonic() + _GRACE
        while time.monotonic() < deadline:
            if os.waitpid(-1, os.WNOHANG) == (0, 0):
                time.sleep(0.02)
    except (ProcessLookupError, ChildProcessError):
        return  # no process is left


def _guarded(action: Callable[[], int]) -> int:
    """Run what a forked child is for; it must never return into its parent's code."""
    try:
        return action()
    except CommandError as error:
        print(f"fakehost: {error}", file=sys.stderr)
        return NOT_FOUND
    except (OSError, DescriptionError) as error:
        print(f"fakehost: {error}", file=sys.stderr)
    except Exception:
        LOG.exception("the emulated host could not be made")
    return FAILED
