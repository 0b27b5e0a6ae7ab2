# SPDX-License-Identifier: Apache-2.0
"""nova-compute killed (-9) in this process: from one step on, no thread of it changes anything any more.

A step is either edge of what nova-compute does to the outside: its database (by way of the conductor), Placement, the
message bus, the engine, the host. At the chosen step the thread ends with an exception that nobody handles; whatever
its ``finally`` blocks and roll-backs would still do to the outside ends in the same way, as it does not happen after a
kill. In-process locks are released, as they are when a process ends.
"""

import contextlib
import functools
import inspect
import threading
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from nova import objects
from nova.compute import manager, rpcapi
from nova.network import neutron
from nova.scheduler.client import report
from nova.volume import cinder

from containerhost import privileged
from containerhost.allocation.store import AllocationStore
from containerhost.engines.lxd.client import LxdClient
from nova_lxd_ext.peers import Peers
from nova_lxd_ext.storage import configdrive, connections, directories
from nova_lxd_ext.storage.connectors import Connectors
from tests.functional.nova.effects import effect

OPERATIONS = ("prep_resize", "resize_instance", "finish_resize", "revert_resize", "finish_revert_resize",
              "confirm_resize", "rescue_instance", "unrescue_instance", "rebuild_instance", "reboot_instance",
              "shelve_instance", "shelve_offload_instance", "unshelve_instance", "snapshot_instance", "attach_volume",
              "detach_volume", "attach_interface", "detach_interface", "pause_instance", "unpause_instance",
              "suspend_instance", "resume_instance", "stop_instance", "start_instance", "terminate_instance",
              "build_and_run_instance")
CASTS = tuple(name for name in OPERATIONS if hasattr(rpcapi.ComputeAPI, name))


class Killed(BaseException):
    """The thread's process does not exist any more."""


def methods(target: type, *excluded: str) -> tuple[str, ...]:
    return tuple(name for name, _ in inspect.getmembers(target, callable)
                 if not name.startswith("_") and name not in excluded)


OUTSIDE = (
    (LxdClient, ("request",)), (AllocationStore, ("claim", "prepare", "attach", "begin_cleaning", "release",
                                                  "block", "free")),
    (configdrive, ("write",)), (directories, ("remove",)), (connections, ("keep", "forget")),
    (Connectors, ("connect", "disconnect")), (privileged.Privileged, methods(privileged.Privileged)),
    (Peers, ("fetch", "fetch_disk", "forget")),
    (objects.Instance, ("save", "drop_migration_context")), (objects.Migration, ("save",)),
    (objects.InstanceActionEvent, ("event_start", "event_finish_with_failure")),
    (report.SchedulerReportClient, ("move_allocations", "delete_allocation_for_instance", "update_from_provider_tree")),
    (rpcapi.ComputeAPI, CASTS), (neutron.API, ("migrate_instance_start", "migrate_instance_finish",
                                                     "allocate_for_instance", "deallocate_port_for_instance")),
    (cinder.API, ("attachment_create", "attachment_update", "attachment_complete", "attachment_delete")),
)


class Killer:
    def __init__(self) -> None:
        self._effects: list[str | None] = []
        self._act: Callable[[], None] | None = None
        self._at: int | None = None
        self._host: str | None = None
        self._process = threading.local()
        self._dead: dict[int, Any] = {}  # kept: a new object may get the id of one that is gone
        self._lock = threading.Lock()
        self._acting = threading.RLock()
        self.happened = threading.Event()

    def arm(self, step: int | None, host: str, act: Callable[[], None] | None = None) -> None:
        """:param step: at which nova-compute on ``host`` is killed; None lets it live
        :param act: done there instead of the kill; one that is under way is waited for
        """
        with self._acting, self._lock:
            self._effects, self._at, self._host, self._act = [], step, host, act
            self.happened.clear()

    @property
    def effects(self) -> tuple[str | None, ...]:
        """Return what each step of the operations since :meth:`arm` has changed outside, until now."""
        with self._lock:
            return tuple(self._effects)

    def step(self, change: str | None = None) -> None:
        compute = getattr(self._process, "compute", None)
        if compute is None:
            return
        if id(compute) in self._dead:
            raise Killed
        with self._lock:
            if compute.host != self._host:
                return
            hit = len(self._effects) == self._at
            self._effects.append(change)
            act = self._act
            if hit and act is None:
                self._dead[id(compute)] = compute
        if hit:
            self.happened.set()
            if act is None:
                raise Killed
            with self._acting:
                act()

    def around(self, target: Any, name: str) -> Callable:
        function = getattr(target, name)

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            self.step()
            result = function(*args, **kwargs)
            self.step(effect(f"{target.__name__}.{name}", args, kwargs))
            return result
        return call

    def within(self, operation: Callable) -> Callable:
        @functools.wraps(operation)
        def call(compute: manager.ComputeManager, *args: Any, **kwargs: Any) -> Any:
            before = getattr(self._process, "compute", None)
            self._process.compute = compute
            try:
                return operation(compute, *args, **kwargs)
            finally:
                self._process.compute = before
        return call

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for target, names in OUTSIDE:
                for name in names:
                    static = inspect.getattr_static(target, name)
                    wrapped = self.around(target, name)
                    stack.enter_context(mock.patch.object(
                        target, name, staticmethod(wrapped) if isinstance(static, (classmethod, staticmethod))
                        else wrapped))
            for name in OPERATIONS:
                stack.enter_context(mock.patch.object(manager.ComputeManager, name,
                                                      self.within(getattr(manager.ComputeManager, name))))
            yield
