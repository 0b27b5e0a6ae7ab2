# SPDX-License-Identifier: Apache-2.0
"""Many nova-computes with our driver: a process for each configuration, forked from one that has loaded everything.

    python -m bench.manyhosts.computes TREE CONFIGURATION...

TREE is the emulated host, the same for all. A line for each request to nova-conductor, with the object and its method,
goes to the file that BENCH_CONDUCTOR_LOG names.
"""

import gc
import os
import sys
from pathlib import Path
from typing import Any

from nova.cmd import compute
from nova.conductor import rpcapi

from bench.manyhosts.simulation import simulate


def note_requests(file: str) -> None:
    """Note each request to nova-conductor in a file."""
    api, log = rpcapi.ConductorAPI, open(file, "a", buffering=1, encoding="utf-8")  # noqa: SIM115  (open until the end)
    of_class, of_object = api.object_class_action_versions, api.object_action

    def class_action(self: Any, context: Any, objname: str, objmethod: str, *more: Any) -> Any:
        log.write(f"{objname}.{objmethod}\n")
        return of_class(self, context, objname, objmethod, *more)

    def object_action(self: Any, context: Any, objinst: Any, objmethod: str, *more: Any) -> Any:
        log.write(f"{objinst.obj_name()}.{objmethod}\n")
        return of_object(self, context, objinst, objmethod, *more)

    api.object_class_action_versions, api.object_action = class_action, object_action


def main() -> None:
    tree, *files = sys.argv[1:]
    simulate(Path(tree))
    note_requests(os.environ["BENCH_CONDUCTOR_LOG"])
    gc.collect()
    gc.freeze()  # pages of what is loaded stay shared
    for file in files:
        if os.fork() == 0:
            sys.argv = ["nova-compute", "--config-file", file]
            compute.main()
            os._exit(0)
    for _ in files:
        os.wait()
    raise SystemExit("every nova-compute has ended")


if __name__ == "__main__":
    main()
