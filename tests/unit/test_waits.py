# SPDX-License-Identifier: Apache-2.0
"""Find each wait for a process without a limit: one that waits in the kernel (state D) would keep its caller for ever.

``subprocess.run`` is among them also with a limit, because it waits for what it has killed.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import testtools

ROOT = Path(__file__).parents[2]
PACKAGES = ("containerhost", "hpcjob", "hpcplan", "lxdone", "nova_lxd_ext", "onedock", "onedriver")
# By module and function: who ends it.
LIMITED = {
    "containerhost/engines/docker/ociruntime.py runc": "Docker waits for it as for runc itself",
    "containerhost/guest/guest.py run": "runs in a container, for the user who started it",
    "containerhost/images/source.py unpacked": "containerhost.images.rebuild, which leaves it behind",
    "containerhost/images/worker.py compressed": "containerhost.images.rebuild, which leaves it behind",
    "containerhost/operator/runtimes/run.py _supervised": "the operator, who started the program in a terminal",
    "containerhost/operator/selftest/guardian.py cleaned_if_killed": "the operator, who started the test in a terminal",
    "containerhost/vendors/nvidia/libraries.py main": "runc, after the time that the hook's description says",
    "nova_lxd_ext/peers.py close": "is no process: the RPC server's threads",
    "onedriver/node/exec_agent.py stay": "is no process: an event",
    "onedriver/node/poll_loop.py run": "is no process: an event, at which the monitor ends",
}


def waits(tree: ast.AST, function: str = "") -> Iterator[str]:
    """Yield the function around each wait without a limit."""
    for node in ast.iter_child_nodes(tree):
        inner = node.name if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else function
        if isinstance(node, ast.Call) and is_unlimited(node):
            yield inner
        yield from waits(node, inner)


def is_unlimited(call: ast.Call) -> bool:
    if not isinstance(call.func, ast.Attribute):
        return False
    owner, name = ast.unparse(call.func.value), call.func.attr
    if owner == "subprocess":
        return name in ("run", "call", "check_call", "check_output")
    if owner == "os":
        return name in ("wait", "system", "popen") or (name == "waitpid" and ast.unparse(call.args[1]) == "0")
    if name == "communicate":
        return len(call.args) < 2 and "timeout" not in {keyword.arg for keyword in call.keywords}
    return name == "wait" and not call.args and not call.keywords


class WaitsTest(testtools.TestCase):
    def test_no_process_is_waited_for_without_a_limit(self) -> None:
        found = {f"{file.relative_to(ROOT)} {function}" for package in PACKAGES
                 for file in (ROOT / package).rglob("*.py") for function in waits(ast.parse(file.read_text()))}
        self.assertEqual(set(LIMITED), found)

    def test_each_way_to_wait_is_seen(self) -> None:
        source = """
def a(): subprocess.run(["true"], timeout=1)
def b(): process.wait()
def c(): os.waitpid(process, 0)
def d(): process.communicate(b"text")
def e(): process.wait(1), os.waitpid(process, os.WNOHANG), process.communicate(None, 1), run(["true"], 1)
"""
        self.assertEqual(list("abcd"), list(waits(ast.parse(source))))
