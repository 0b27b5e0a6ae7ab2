# SPDX-License-Identifier: Apache-2.0
"""Test that a refusal of Docker becomes an error whose reason is not cut."""

import testtools

from containerhost.engines.docker import error_map


class RefusalTest(testtools.TestCase):
    def test_reason_of_the_runtime_comes_first(self) -> None:
        for before in ("failed to create shim task: OCI runtime create failed: runc create failed: unable to start "
                       "container process: ",
                       "failed to create task for container: failed to create shim task: OCI runtime create failed: "
                       "runc create failed: unable to start container process: error during container init: "):
            for reason in ('exec: "nginx": executable file not found in $PATH: unknown',
                           "error setting rlimit type 8: operation not permitted: unknown"):
                self.assertEqual(f"start container one-1: Docker says: {reason}",
                                 str(error_map.error_for("start container one-1", 400, f"{before}{reason}\n")))

    def test_other_words_stay(self) -> None:
        self.assertEqual("start x: Docker says: no such thing",
                         str(error_map.error_for("start x", 404, "no such thing")))
        self.assertEqual("start x: Docker says: HTTP status 500", str(error_map.error_for("start x", 500, " ")))
