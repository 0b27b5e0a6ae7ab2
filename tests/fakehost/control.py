# SPDX-License-Identifier: Apache-2.0
"""Talking to a running emulated host: the socket it listens on, and the client for tests and shims.

A request is one line of JSON ``{"call": NAME, "arguments": {...}}``; the answer one line ``{"result": ...}`` or
``{"error": MESSAGE, "errno": NUMBER}``. A call has taken effect when its answer is there.
"""

import errno
import json
import os
import socket
from collections.abc import Mapping, Sequence
from typing import Any

ENVIRONMENT = "FAKEHOST_CONTROL"
_TIMEOUT = 30  # seconds


class FakeHostControl:
    """Causes faults in the emulated host that the process runs in, and asks for what only its hardware knows.

    Methods raise OSError, with the kernel's errno where there is one, when the host refuses.
    """

    def __init__(self, path: str) -> None:
        self._path = path

    @classmethod
    def from_environment(cls) -> "FakeHostControl":
        """
        :raises RuntimeError: this process does not run under tools/fakehost
        """
        path = os.environ.get(ENVIRONMENT)
        if not path:
            raise RuntimeError(f"{ENVIRONMENT} is not set: run this under tools/fakehost")
        return cls(path)

    def remove(self, address: str) -> None:
        """Pull a function, with its VFs, out of the machine: all that it showed vanishes."""
        self._call("remove", address=address)

    def restore(self, address: str) -> None:
        """Plug in again what ``remove`` pulled, as it was."""
        self._call("restore", address=address)

    def bind(self, address: str) -> None:
        """Bind a function to its driver."""
        self._call("bind", address=address)

    def unbind(self, address: str) -> None:
        """Take a function from its driver; its interface is gone then, also from a container."""
        self._call("unbind", address=address)

    def set_num_vfs(self, address: str, count: int) -> None:
        self._call("set_num_vfs", address=address, count=count)

    def set_fallen(self, address: str, fallen: bool = True) -> None:
        """Have a card fall off the bus (configuration space reads ff, the driver's information gone), or return."""
        self._call("set_fallen", address=address, fallen=fallen)

    def set_pci_link(self, address: str, **link: int) -> None:
        """Change what sysfs shows of a card's link: ``lanes`` of 16, errors that are ``fatal`` and ``nonfatal``."""
        self._call("set_pci_link", address=address, **link)

    def set_load(self, address: str, percent: int) -> None:
        """Have NVML (:mod:`tests.fakehost.nvml`) report that a GPU computes: utilisation, memory, power."""
        self._call("set_load", address=address, percent=percent)

    def loads(self) -> dict[str, int]:
        """Return the loads of the GPUs that NVIDIA's driver reaches, by address."""
        return dict(self._call("loads"))

    def say(self, message: str) -> None:
        """Have the kernel write a message to its log, /dev/kmsg."""
        self._call("say", message=message)

    def set_nodes(self, address: str, there: bool) -> None:
        """Take a function's nodes out of /dev, or put them back."""
        self._call("set_nodes", address=address, there=there)

    def set_mig(self, address: str, instances: Sequence[tuple[int, int]]) -> None:
        """Cut a GPU anew: pairs of GPU instance and compute instance; none leave it uncut."""
        self._call("set_mig", address=address, instances=[list(pair) for pair in instances])

    def set_link(self, address: str, up: bool) -> None:
        self._call("set_link", address=address, up=up)

    def move_abroad(self, address: str) -> str:
        """Move a function's interface into an otherwise unused network namespace; returns the name it had."""
        return str(self._call("move_abroad", address=address))

    def bring_home(self, address: str) -> None:
        """Bring back an interface that ``move_abroad`` moved."""
        self._call("bring_home", address=address)

    def interface(self, address: str) -> str | None:
        """The name of a function's interface when it is on the host."""
        name = self._call("interface", address=address)
        return None if name is None else str(name)

    def resets(self) -> list[str]:
        """The addresses of functions that were reset, in order."""
        return list(self._call("resets"))

    def vf_state(self, interface: str, index: int) -> dict[str, str]:
        """Return the settings of a VF of the physical function with this interface: node_guid, mac, vlan, ..."""
        settings = self.vf_settings(interface)
        if index >= len(settings):
            raise OSError(errno.EINVAL, f"{interface} has {len(settings)} VFs, there is no VF {index}")
        return settings[index]

    def vf_settings(self, interface: str) -> list[dict[str, str]]:
        return list(self._call("vf_settings", interface=interface))

    def set_vf(self, interface: str, index: int, settings: Mapping[str, str]) -> None:
        """Set a VF as ``ip link set INTERFACE vf INDEX KEY VALUE`` does."""
        self._call("set_vf", interface=interface, index=index, settings=dict(settings))

    def set_rdma_namespaces(self, exclusive: bool) -> None:
        """Let RDMA devices be in one network namespace each, or be shared by all."""
        self._call("set_rdma_namespaces", exclusive=exclusive)

    def move_rdma(self, ibdev: str) -> None:
        """Move an RDMA device into another network namespace."""
        self._call("move_rdma", ibdev=ibdev)

    def set_hardware_address(self, interface: str, address: str) -> None:
        """Give an IPoIB interface another address of twenty octets."""
        self._call("set_hardware_address", interface=interface, address=address)

    def _call(self, name: str, **arguments: Any) -> Any:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(_TIMEOUT)
            connection.connect(self._path)
            connection.sendall(json.dumps({"call": name, "arguments": arguments}).encode() + b"\n")
            with connection.makefile("r", encoding="utf-8") as file:
                answer = json.loads(file.readline() or '{"error": "the emulated host is ending", "errno": 32}')
        if "error" in answer:
            raise OSError(answer["errno"], answer["error"])
        return answer["result"]
