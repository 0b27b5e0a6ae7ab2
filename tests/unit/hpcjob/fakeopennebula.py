# SPDX-License-Identifier: Apache-2.0
"""Emulate an oned that speaks XML-RPC on loopback, so that the real pyone runs.

Answers have the elements of OpenNebula's share/doc/xsd that pyone's bindings read; states are those of
include/VirtualMachine.h."""

import re
import threading
import xml.sax.saxutils
import xmlrpc.server
from typing import Any
from xml.etree import ElementTree

import fixtures
import pyone

SESSION = "tenant:secret-token"
ACTION, NO_EXISTS = 0x0800, 0x0400
HOLD, ACTIVE, POWEROFF = 2, 3, 8
RUNNING, PROLOG_FAILURE = 3, 39
SEEN = -2  # filter of pools: all that the user may use


class _Server(xmlrpc.server.SimpleXMLRPCServer):
    daemon_threads = True
    allow_reuse_address = True


class FakeOpenNebula(fixtures.Fixture):
    """VMs that are released run when they are looked at.

    :ivar room: VMs that get a host; the others wait
    :ivar leases: addresses of the network
    :ivar template: elements of the template
    """

    def _setUp(self) -> None:
        self.vms: dict[int, dict[str, Any]] = {}
        self.made = 0
        #: Hosts that do not answer.
        self.dead: set[str] = set()
        self.groups: dict[int, str] = {}
        self.group_templates: list[str] = []
        self.requests: list[tuple[Any, ...]] = []
        self.room = self.leases = 1_000
        self.template = ""
        self.context: dict[str, str] = {"NETWORK": "YES", "ETH0_IP": "x", "DISK_ID": "1"}
        self.after: Any = lambda method: None
        self._server = _Server(("127.0.0.1", 0), requestHandler=_Handler, logRequests=False, allow_none=True)
        self._server.register_instance(self)
        thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        self.addCleanup(thread.join, 10)
        self.addCleanup(self._server.server_close)
        self.addCleanup(self._server.shutdown)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/RPC2"

    def server(self) -> Any:
        return pyone.OneServer(self.url, session=SESSION)

    def left(self) -> dict[str, int]:
        return {"vms": len(self.vms), "groups": len(self.groups)}

    def _dispatch(self, method: str, parameters: tuple[Any, ...]) -> list[Any]:
        session, *rest = parameters
        if session != SESSION:
            return [False, "[one] User couldn't be authenticated, aborting call.", 0x0100]
        self.requests.append((method, *rest))
        answer = getattr(self, "_" + method.removeprefix("one.").replace(".", "_"))(*rest)
        self.after(method)
        return answer if isinstance(answer, list) else [True, answer, 0]

    def _vmgroup_allocate(self, text: str) -> int:
        number = 70 + len(self.group_templates)
        self.group_templates.append(text)
        self.groups[number] = re.findall(r'NAME="([^"]*)"', text)[0]
        return number

    def _vmgrouppool_info(self, *selection: int) -> str:
        return "<VM_GROUP_POOL>" + "".join(
            f"<VM_GROUP><ID>{number}</ID><UID>2</UID><GID>1</GID><UNAME>t</UNAME><GNAME>g</GNAME><NAME>{name}</NAME>"
            f"<ROLES/><TEMPLATE/></VM_GROUP>" for number, name in self.groups.items()) + "</VM_GROUP_POOL>"

    def _vmgroup_delete(self, number: int) -> int | list[Any]:
        if self.vms:
            return [False, "Cannot remove: VM group has VMs", ACTION]
        del self.groups[number]
        return number

    def _templatepool_info(self, *selection: int) -> str:
        return "<VMTEMPLATE_POOL>" + "".join(
            f"<VMTEMPLATE><ID>{number}</ID><UID>0</UID><GID>0</GID><UNAME>o</UNAME><GNAME>o</GNAME><NAME>{name}</NAME>"
            f"<REGTIME>1</REGTIME><TEMPLATE/></VMTEMPLATE>" for number, name in ((7, "mpi"), (8, "two"), (9, "two"))
            if selection[0] == SEEN) + "</VMTEMPLATE_POOL>"  # all are of oneadmin

    def _template_info(self, template: int, *more: Any) -> str | list[Any]:
        if template != 7:
            return [False, f"[one.template.info] Error getting virtual machine template [{template}].", NO_EXISTS]
        return (f"<VMTEMPLATE><ID>7</ID><NAME>mpi</NAME><TEMPLATE><NIC><NETWORK>private</NETWORK></NIC>"
                f"{self.template}</TEMPLATE></VMTEMPLATE>")

    def _template_instantiate(self, template: int, name: str, hold: bool, more: str, clone: bool) -> int | list[Any]:
        if len(self.vms) >= self.leases:
            return [False, "Cannot get IP/MAC lease from virtual network 0.", ACTION]
        number = 100 + self.made
        vm = {"name": name, "state": HOLD if hold else ACTIVE, "lcm": 0, "context": dict(self.context), "error": "",
              "user": dict(re.findall(r'(HPCJOB\w*)="([^"]*)"', more)), "more": more, "host": "",
              "owner": "t", "address": f"10.1.0.{number - 95}"}
        if more.startswith("<"):
            extra = ElementTree.fromstring(more)
            vm |= {"user": {element.tag: element.text for element in extra if element.tag.startswith("HPCJOB")},
                   "address": extra.findtext("NIC/IP") or vm["address"]}
        if vm["address"] in [other["address"] for other in self.vms.values()]:
            return [False, "Cannot get IP/MAC lease from virtual network 0.", ACTION]
        self.made += 1
        self.vms[number] = vm
        return number

    def _vm_info(self, number: int, *more: Any) -> str | list[Any]:
        if number not in self.vms:
            return [False, f"[one.vm.info] Error getting virtual machine [{number}].", NO_EXISTS]
        return self._xml(number)

    def _vmpool_infoextended(self, *selection: Any) -> str:
        for number, vm in enumerate(self.vms.values()):
            if vm["state"] == ACTIVE and number < self.room and not vm["lcm"]:
                vm |= {"lcm": RUNNING, "host": "node9" if "SCHED_REQ" in vm["more"] else f"node{number // 2}"}
        return "<VM_POOL>" + "".join(self._xml(number) for number, vm in self.vms.items() if selection[0] == SEEN
                                     or vm["owner"] == "t") + "</VM_POOL>"

    def _xml(self, number: int) -> str:
        vm = self.vms[number]
        state = 1 if vm["state"] == ACTIVE and not vm["lcm"] else vm["state"]
        user = dict(vm["user"])
        if state == 1:
            user["SCHED_MESSAGE"] = "Cannot dispatch VM: No hosts with enough capacity"
        if vm["error"]:
            user["ERROR"] = vm["error"]
        history = (f"<HISTORY><OID>{number}</OID><SEQ>0</SEQ><HOSTNAME>{vm['host']}</HOSTNAME><HID>1</HID></HISTORY>"
                   if vm["host"] else "")
        return (f"<VM><ID>{number}</ID><UID>2</UID><GID>1</GID><UNAME>{vm['owner']}</UNAME><GNAME>g</GNAME>"
                f"<NAME>{vm['name']}</NAME><LAST_POLL>0</LAST_POLL><STATE>{state}</STATE><LCM_STATE>{vm['lcm']}</LCM_STATE><RESCHED>0</RESCHED>"
                f"<STIME>1</STIME><ETIME>0</ETIME><DEPLOY_ID/><MONITORING/><TEMPLATE><CONTEXT>{_elements(vm['context'])}"
                f"</CONTEXT><NIC><IP>{vm['address']}</IP><NIC_ID>0</NIC_ID></NIC></TEMPLATE>"
                f"<USER_TEMPLATE>{_elements(user)}</USER_TEMPLATE><HISTORY_RECORDS>{history}</HISTORY_RECORDS></VM>")

    def _vm_updateconf(self, number: int, text: str, append: int) -> int | list[Any]:
        if append != 1:
            return [False, "the fake knows merging alone", ACTION]
        context = ElementTree.fromstring(text).find("CONTEXT")
        assert context is not None
        self.vms[number]["context"] |= {element.tag: element.text or "" for element in context}
        return number

    def _vm_action(self, action: str, number: int) -> int | list[Any]:
        vm = self.vms.get(number)
        if action == "terminate-hard" and vm and vm.get("host") in self.dead:
            return number  # the driver fails later, and the VM is as it was
        if vm is None:
            return [False, f"[one.vm.action] Error getting virtual machine [{number}].", NO_EXISTS]
        if action == "release":
            vm["state"] = ACTIVE
        elif action == "terminate-hard":
            if vm.pop("busy", False):
                return [False, "Could not terminate VM, wrong state BOOT.", ACTION]
            del self.vms[number]
        return number


def _elements(values: dict[str, str]) -> str:
    return "".join(f"<{key}>{xml.sax.saxutils.escape(value)}</{key}>" for key, value in values.items())


class _Handler(xmlrpc.server.SimpleXMLRPCRequestHandler):
    rpc_paths = ("/RPC2",)
