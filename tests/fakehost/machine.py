# SPDX-License-Identifier: Apache-2.0
"""The emulated host while it runs: functions are bound, reset, removed and configured, and the tree follows at once.

Every change replaces a function's record; what the old one showed and the new one does not is removed from the tree,
and the other way round. Refusals are OSErrors with the errno that the kernel gives.

What is set for a VF through its physical function (GUIDs, MAC) becomes visible in the VF when its driver binds it the
next time, as mlx5 and igb do; ``ip link show PF`` shows it at once. VLAN, spoof check and rate are stored and shown,
but frames are carried as without them.
"""

import dataclasses
import errno
import itertools
import os
import re
import threading
from collections.abc import Iterable
from typing import Any

from tests.fakehost import linux, nets, tree
from tests.fakehost.attributes import Attribute
from tests.fakehost.description import Kind
from tests.fakehost.entries import Action, Entry
from tests.fakehost.functions import (
    Function,
    GpuFunction,
    Identity,
    NetFunction,
    default_identity,
    format_guid,
    vf_function,
)
from tests.fakehost.interfaces import Interfaces
from tests.fakehost.kernellog import KernelLog
from tests.fakehost.netdevs import Port, Switch, bring_back, foreign_namespace, open_port
from tests.fakehost.writer import LiveWriter

_NO_MAC = "00:00:00:00:00:00"
_VF_DEFAULTS = {"mac": _NO_MAC, "vlan": "0", "qos": "0", "spoofchk": "on", "trust": "off", "state": "auto",
                "max_tx_rate": "0", "min_tx_rate": "0"}
_RATES = {"max_tx_rate", "min_tx_rate"}
_SETTABLE = {"node_guid", "port_guid", *_VF_DEFAULTS}


class Machine:
    """Keeps tree, interfaces and fabric in step with the functions. Every method may be called from any thread."""

    def __init__(self, writer: LiveWriter, interfaces: Interfaces) -> None:
        self._lock = threading.RLock()
        self._writer = writer
        self._interfaces = interfaces
        self._functions: dict[str, Function] = {}
        self._removed: dict[str, list[Function]] = {}
        self._vf_settings: dict[str, dict[str, str]] = {}
        self._ports: dict[str, Port] = {}
        self._resets: list[str] = []
        self._loads: dict[str, int] = {}
        self.kernel_log = KernelLog()
        self._home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        self._home_inode = os.fstat(self._home).st_ino
        self._abroad: dict[str, int] = {}
        self._rdma_exclusive = False
        self._switch = Switch(self.follow_interfaces)

    def start(self, present: list[Function]) -> None:
        with self._lock:
            for function in present:
                self._put(function)
        self._switch.start()

    # Attributes of sysfs that act.

    def read_action(self, action: Action) -> str:
        if action.name == "sriov_numvfs":
            return f"{self._net(action.address).num_vfs}\n"
        raise OSError(errno.EACCES, f"{action.path} can only be written")

    def write_action(self, action: Action, text: str) -> None:
        text = text.strip()
        with self._lock:
            match action.name:
                case "sriov_numvfs":
                    self.set_num_vfs(action.address, _number(text))
                case "reset":
                    self.reset(action.address)
                case "bind":
                    self.bind(text, action.address)
                case "unbind":
                    self.unbind(text, action.address)
                case "drivers_probe":
                    self.bind(text)

    def set_num_vfs(self, address: str, count: int) -> None:
        with self._lock:
            pf = self._net(address)
            if not pf.bound:
                raise OSError(errno.ENOENT, f"{address} has no driver")
            if count > pf.card.total_vfs:
                raise OSError(errno.ERANGE, f"{address} can have {pf.card.total_vfs} VFs")
            if count == pf.num_vfs:
                return
            if count and pf.num_vfs:
                raise OSError(errno.EBUSY, f"{address} has {pf.num_vfs} VFs already; write 0 first")
            for vf in self._vfs(pf):
                self._take_away(vf)
                self._vf_settings.pop(vf.address, None)
            self._put(dataclasses.replace(pf, num_vfs=count))
            for index in range(count):
                self._put(vf_function(pf.card, index, self._free_number()))

    def bind(self, address: str, driver: str | None = None) -> None:
        """Bind a function to the driver that is made for it.

        :param driver: whose ``bind`` was written; None for ``drivers_probe``
        """
        with self._lock:
            function = self._get(address)
            native = function.gpu.driver if isinstance(function, GpuFunction) else function.native_driver
            if driver not in (None, native):
                raise OSError(errno.ENODEV, f"{driver} does not drive {address}")
            if function.bound:
                if driver:
                    raise OSError(errno.EBUSY, f"{address} is bound already")
                return
            if isinstance(function, NetFunction):
                function = dataclasses.replace(function, identity=self._configured_identity(function), hwaddr=None,
                                               rdma_away=False)
            self._put(dataclasses.replace(function, bound=True))

    def unbind(self, address: str, driver: str | None = None) -> None:
        """Unbind a function; its interface is gone then, also from a container.

        :param driver: whose ``unbind`` was written; None for whichever has bound it
        """
        with self._lock:
            function = self._get(address)
            if not function.bound or driver not in (None, function.driver):
                raise OSError(errno.ENODEV, f"{address} is not bound to {driver or 'a driver'}")
            if isinstance(function, NetFunction) and function.num_vfs:
                self.set_num_vfs(address, 0)
            self._put(dataclasses.replace(self._get(address), bound=False))

    def reset(self, address: str) -> None:
        with self._lock:
            if self._get(address).fallen:
                raise OSError(errno.ENOTTY, f"{address} does not answer")
            self._resets.append(address)

    # Requests of tests through the control socket.

    def resets(self) -> list[str]:
        """The addresses of functions that were reset, in order."""
        return list(self._resets)

    def remove(self, address: str) -> None:
        """Pull a function, with its VFs, out of the machine: all that it showed vanishes."""
        with self._lock:
            function = self._get(address)
            vfs = self._vfs(function) if isinstance(function, NetFunction) else []
            for each in (*vfs, function):
                self._take_away(each)
            self._removed[address] = [function, *vfs]

    def restore(self, address: str) -> None:
        """Plug in again what ``remove`` pulled, as it was."""
        with self._lock:
            if address not in self._removed:
                raise OSError(errno.ENODEV, f"{address} was not removed")
            for function in self._removed.pop(address):
                self._put(function)

    def set_fallen(self, address: str, fallen: bool) -> None:
        """Have a card fall off the bus: configuration space reads ff, the driver's information is gone."""
        self._replace(address, fallen=fallen)

    def set_pci_link(self, address: str, **link: int) -> None:
        """Change what sysfs shows of a card's link: ``lanes``, ``fatal``, ``nonfatal``."""
        with self._lock:
            self._replace(address, link=dataclasses.replace(self._get(address).link, **link))

    def set_load(self, address: str, percent: int) -> None:
        with self._lock:
            if not isinstance(self._get(address), GpuFunction):
                raise OSError(errno.EINVAL, f"{address} is no GPU")
            self._loads[address] = percent

    def loads(self) -> dict[str, int]:
        """Return the loads of the GPUs that NVIDIA's driver reaches, by address."""
        with self._lock:
            return {address: self._loads.get(address, 0) for address, function in self._functions.items()
                    if isinstance(function, GpuFunction) and function.gpu.driver == "nvidia" and function.bound
                    and not function.fallen}

    def say(self, message: str) -> None:
        """Have the kernel write a message to its log."""
        self.kernel_log.say(message)

    def set_nodes(self, address: str, there: bool) -> None:
        """Take a function's nodes out of /dev, or put them back."""
        self._replace(address, nodes=there)

    def set_mig(self, address: str, instances: list[list[int]]) -> None:
        """Cut a GPU anew: pairs of GPU instance and compute instance."""
        with self._lock:
            function = self._get(address)
            if not isinstance(function, GpuFunction) or function.gpu.vendor != "nvidia":
                raise OSError(errno.EINVAL, f"{address} is no GPU that can be cut")
            pairs = tuple((int(gi), int(ci)) for gi, ci in instances)
            self._put(dataclasses.replace(function, gpu=dataclasses.replace(function.gpu, mig=pairs)))

    def set_link(self, address: str, up: bool) -> None:
        with self._lock:
            self._net(address)
            self._replace(address, link_up=up)

    def move_abroad(self, address: str) -> str:
        """Move a function's interface into an otherwise unused network namespace; the name it had."""
        with self._lock:
            name = self.interface(address)
            if name is None:
                raise OSError(errno.ENODEV, f"{address} has no interface on this host")
            self._abroad[address] = foreign_namespace()
            linux.move_interface(name, self._abroad[address])
            self.follow_interfaces()
            return name

    def bring_home(self, address: str) -> None:
        """Bring back an interface that ``move_abroad`` moved."""
        with self._lock:
            namespace = self._abroad.pop(address, None)
            name = self._ports[address].name() if address in self._ports else None
            if namespace is None or name is None:
                raise OSError(errno.ENODEV, f"the interface of {address} was not moved away")
            bring_back(name, namespace, self._home)
            os.close(namespace)
            self.follow_interfaces()

    def interface(self, address: str) -> str | None:
        """The name of a function's interface when it is on the host."""
        with self._lock:
            port = self._ports.get(address)
            name = port.name() if port else None
            return name if port and name and port.namespace() == self._home_inode else None

    # Settings of a TAP that the ip command does not support.

    def vf_attribute(self) -> Attribute:
        """Return the attribute to which the words of ``ip link set dev INTERFACE vf INDEX ...`` are written.

        The host's own ip command need not start Python for each. It refuses what that command has an answer of its own
        to."""
        return Attribute(0o200, lambda: "", self._write_vf)

    def _write_vf(self, text: str) -> None:
        match text.split():
            case ["link", "set", "dev", interface, "vf", index, *pairs] if len(pairs) % 2 == 0:
                settings = dict(zip(pairs[::2], pairs[1::2], strict=True))
                if settings.keys() <= _SETTABLE:
                    return self.set_vf(interface, _number(index), settings)
        raise OSError(errno.EINVAL, f"{text!r} sets nothing of a VF")

    def set_vf(self, interface: str, index: int, settings: dict[str, str]) -> None:
        """Set a VF as ``ip link set INTERFACE vf INDEX ...`` does; keys as that command writes them."""
        with self._lock:
            vf = self._vf(interface, index)
            known = self._settings(vf)
            if _RATES & settings.keys() and (vf.card.kind is Kind.INFINIBAND or not vf.card.vf_rates):
                raise OSError(errno.EOPNOTSUPP, f"driver {vf.card.driver} has no ndo_set_vf_rate")
            for key, value in settings.items():
                known[key] = _normal(key, value)
            self._vf_settings[vf.address] = known
            if "state" in settings:
                self._replace(vf.address, link_up=settings["state"] != "disable")

    def vf_settings(self, interface: str) -> list[dict[str, str]]:
        """Return the VFs as ``ip link show INTERFACE`` reports them, in their order; empty when it has none."""
        with self._lock:
            function = self._by_interface(interface)
            if function is None:
                return []
            return [{**self._settings(vf), "kind": vf.card.kind.value} for vf in self._vfs(function)]

    def set_hardware_address(self, interface: str, address: str) -> None:
        """Give an IPoIB interface another address of twenty octets."""
        with self._lock:
            function = self._by_interface(interface)
            if function is None or function.card.kind is not Kind.INFINIBAND:
                raise OSError(errno.EINVAL, f"{interface} is not an InfiniBand interface of this host")
            self._replace(function.address, hwaddr=address)

    # The rdma command.

    def set_rdma_namespaces(self, exclusive: bool) -> None:
        """``rdma system set netns exclusive|shared``."""
        with self._lock:
            self._rdma_exclusive = exclusive
            self._writer.write([nets.namespace_mode(exclusive)])

    def move_rdma(self, ibdev: str) -> None:
        """Do ``rdma dev set IBDEV netns NAME``: the device is not to be seen here any more.

        It comes back with its function's interface when that other namespace ends, or when its driver binds it anew."""
        with self._lock:
            found = [each for each in self._functions.values() if isinstance(each, NetFunction) and each.bound
                     and each.card.kind.rdma and not each.rdma_away and f"mlx5_{each.number}" == ibdev]
            if not found:
                raise OSError(errno.ENODEV, f"there is no RDMA device {ibdev} in this namespace")
            if not self._rdma_exclusive:
                raise OSError(errno.EOPNOTSUPP, "RDMA devices are shared by all network namespaces")
            self._replace(found[0].address, rdma_away=True)

    def follow_interfaces(self) -> None:
        """Bring the tree in step with where the interfaces are now and what they are called."""
        with self._lock:
            for address, port in list(self._ports.items()):
                if port.name() is None:
                    self._fall_back(address, port)
                self._interfaces.follow(self._net(address), self.interface(address))

    def _fall_back(self, address: str, old: Port) -> None:
        """Restore an interface whose namespace ended: a TAP ended with it; a real one returns to the host.

        As in the kernel's default_device_exit_net: under the name that it had, if that is free here.
        """
        self._switch.unplug(old)
        self._plug(self._net(address), old.last_name, old.last_mac)
        if self._net(address).rdma_away:
            self._replace(address, rdma_away=False)

    def _put(self, function: Function) -> None:
        """Make a function be as the record says."""
        old = self._functions.get(function.address)
        before = {} if old is None else _by_path(tree.function_entries(old))
        after = _by_path(tree.function_entries(function))
        self._writer.remove(entry for path, entry in before.items() if path not in after)
        self._writer.write(entry for path, entry in after.items() if before.get(path) != entry)
        self._functions[function.address] = function
        if isinstance(function, NetFunction):
            self._settle_interface(function, old)

    def _take_away(self, function: Function) -> None:
        if isinstance(function, NetFunction):
            self._settle_interface(dataclasses.replace(function, bound=False), function)
        self._writer.remove(tree.function_entries(function))
        del self._functions[function.address]

    def _settle_interface(self, function: NetFunction, old: Function | None) -> None:
        wanted = function.bound and not function.fallen
        port = self._ports.get(function.address)
        if port and not wanted:
            self._switch.unplug(self._ports.pop(function.address))
            self._interfaces.follow(function, None)
        elif wanted and not port:
            self._plug(function, function.netdev, function.identity.mac)
        elif port and function != old:
            port.set_carrier(function.link_up)
            self._interfaces.refresh(function)

    def _plug(self, function: NetFunction, name: str, mac: str) -> None:
        port = open_port(name, function.card.fabric, mac, function.card.kind is Kind.INFINIBAND)
        port.set_carrier(function.link_up)
        if function.index is None:
            port.set_up()
        self._ports[function.address] = port
        self._switch.plug(port)
        self._interfaces.follow(function, port.name())

    def _replace(self, address: str, **changes: Any) -> None:
        with self._lock:
            self._put(dataclasses.replace(self._get(address), **changes))

    def _get(self, address: str) -> Function:
        if address not in self._functions:
            raise OSError(errno.ENODEV, f"there is no function {address}")
        return self._functions[address]

    def _net(self, address: str) -> NetFunction:
        function = self._get(address)
        if not isinstance(function, NetFunction):
            raise OSError(errno.EINVAL, f"{address} is not a network function")
        return function

    def _by_interface(self, interface: str) -> NetFunction | None:
        return next((self._net(address) for address in self._ports if self.interface(address) == interface), None)

    def _vfs(self, pf: NetFunction) -> list[NetFunction]:
        vfs = (each for each in self._functions.values() if isinstance(each, NetFunction))
        return [vf for vf in vfs if vf.card is pf.card and vf.index is not None and pf.index is None]

    def _vf(self, interface: str, index: int) -> NetFunction:
        pf = self._by_interface(interface)
        for vf in self._vfs(pf) if pf else ():
            if vf.index == index:
                return vf
        raise OSError(errno.EINVAL, f"{interface} has no VF {index}")

    def _settings(self, vf: NetFunction) -> dict[str, str]:
        identity = default_identity(vf.card.address, vf.index)
        return dataclasses.asdict(identity) | _VF_DEFAULTS | self._vf_settings.get(vf.address, {})

    def _configured_identity(self, function: NetFunction) -> Identity:
        settings = self._settings(function)
        # Without a MAC from the physical function, or with a zero one, a VF has a MAC of its own.
        own = default_identity(function.card.address, function.index).mac
        mac = own if settings["mac"] == _NO_MAC else settings["mac"]
        return Identity(settings["node_guid"], settings["port_guid"], mac)

    def _free_number(self) -> int:
        used = {each.number for each in self._functions.values() if isinstance(each, NetFunction)}
        return next(number for number in itertools.count() if number not in used)


def _by_path(entries: Iterable[Entry]) -> dict[str, Entry]:
    return {entry.path: entry for entry in entries}


def _number(text: str) -> int:
    if not text.isdigit():
        raise OSError(errno.EINVAL, f"{text!r} is not a number")
    return int(text)


def _normal(key: str, value: str) -> str:
    if key in ("node_guid", "port_guid"):
        digits = value.replace(":", "")
        if not re.fullmatch("[0-9a-fA-F]{16}", digits):
            raise OSError(errno.EINVAL, f"{value!r} is not a GUID")
        return format_guid(int(digits, 16))
    if key == "mac" and not re.fullmatch("([0-9a-fA-F]{2}:){5}[0-9a-fA-F]{2}", value):
        raise OSError(errno.EINVAL, f"{value!r} is not a MAC address")
    return str(_number(value)) if key in _RATES else value.lower()
