# SPDX-License-Identifier: Apache-2.0
"""Placement's own application, which notes each request: when it began, seconds, processor time, method and URL."""

import os
import time
from collections.abc import Callable, Iterable
from typing import Any

from placement.wsgi.api import application as placement

LOG = open(os.environ["BENCH_PLACEMENT_LOG"], "a", buffering=1, encoding="utf-8")  # noqa: SIM115  (open until its end)


def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    wall, processor, begin = time.perf_counter(), time.thread_time(), time.time()
    try:
        return list(placement(environ, start_response))
    finally:
        LOG.write(f"{begin:.3f} {time.perf_counter() - wall:.4f} {time.thread_time() - processor:.4f} "
                  f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']}?{environ.get('QUERY_STRING', '')}\n")
