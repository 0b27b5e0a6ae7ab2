# SPDX-License-Identifier: Apache-2.0
"""Translate containerhost's errors to nova's. No other module does.

Nova decides by the class what happens next, and the tenant reads the message as the server's fault. A device or a
setting that this host lacks may exist on another (ComputeResourcesUnavailable), so a boot is rescheduled; an
impossible flavor fails everywhere, so its boot ends (BuildAbortException).
"""

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any, Concatenate, ParamSpec, TypeVar

from nova import exception, objects
from nova.compute import task_states

from containerhost import errors

# Task states from the removal of the old container to the start of the new one.
REBUILDS = (task_states.REBUILDING, task_states.REBUILD_SPAWNING)

P = ParamSpec("P")
R = TypeVar("R")


class LXDError(exception.NovaException):
    """Report an engine's refusal for which nova has no class."""

    msg_fmt = "%(reason)s"


class LXDUnavailable(exception.HypervisorUnavailable):
    msg_fmt = "%(reason)s"


@contextlib.contextmanager
def as_nova(instance: Any = None, failure: Callable[..., Exception] = LXDError, *, booting: bool = False
            ) -> Iterator[None]:
    """Translate containerhost's errors in the block to nova's.

    :param failure: nova's class for what the block does, taking ``reason``
    :param booting: the server has no container yet. So an object that the engine does not find is another one, such
        as its pool: on an error about the *server*, nova would consider it deleted and leave it in BUILD forever.
    """
    try:
        yield
    except errors.EngineNotFound as error:
        if instance is None or booting:
            raise failure(reason=str(error)) from error
        raise exception.InstanceNotFound(str(error), instance_id=instance.uuid) from error
    except errors.EngineUnavailable as error:
        raise LXDUnavailable(reason=str(error)) from error
    except errors.DeviceError as error:
        raise exception.ComputeResourcesUnavailable(reason=str(error).rstrip(".")) from error
    except errors.UnsupportedOnHost as error:
        if instance is None or not booting:
            raise failure(reason=str(error)) from error
        raise exception.ComputeResourcesUnavailable(reason=str(error).rstrip(".")) from error
    except errors.SpecError as error:
        if instance is None or not booting:
            raise failure(reason=str(error)) from error
        raise exception.BuildAbortException(instance_uuid=instance.uuid, reason=str(error)) from error
    except errors.ContainerHostError as error:
        raise failure(reason=str(error)) from error


@contextlib.contextmanager
def rebuilding(instance: objects.Instance, host: str) -> Iterator[None]:
    """Set a server to ERROR if it cannot be booted again during a rebuild on its host, without its former container.

    Its former container is gone.

    nova.compute.manager treats ComputeResourcesUnavailable in a rebuild as a claim refused before any change, and
    leaves the server ACTIVE.
    """
    try:
        yield
    except exception.ComputeResourcesUnavailable as error:
        if instance.host == host and instance.task_state in REBUILDS:
            raise LXDError(reason=error.format_message()) from error
        raise


def translated(failure: Callable[..., Exception] = LXDError) -> Callable[
        [Callable[Concatenate[Any, P], R]], Callable[Concatenate[Any, P], R]]:
    """Decorate the driver's methods with :func:`as_nova` and their argument ``instance``."""

    def decorate(method: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], R]:
        # Computed once: binding the arguments at each call would take half the time of a query of a thousand power
        # states.
        names = list(inspect.signature(method).parameters)[1:]
        place = names.index("instance") if "instance" in names else len(names)

        @functools.wraps(method)
        def wrapper(self: Any, *args: P.args, **kwargs: P.kwargs) -> R:
            instance = args[place] if place < len(args) else kwargs.get("instance")
            with as_nova(instance, failure):
                return method(self, *args, **kwargs)
        return wrapper
    return decorate
