# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's management library for the emulated host, which has the kernel's files only: it names MIG profiles."""

from collections.abc import Mapping

import fixtures

from containerhost.vendors.nvidia import nvml

GIB = 1024 ** 3


class Nvml(fixtures.Fixture):
    """:param profiles: (GPU instance, compute instance) -> profile, by the GPU's address
    """

    def __init__(self, profiles: Mapping[str, Mapping[tuple[int, int], str]]) -> None:
        self._answer = {address: _gpu(address, slices) for address, slices in profiles.items()}

    def _setUp(self) -> None:
        self.useFixture(fixtures.MonkeyPatch("containerhost.vendors.nvidia.nvml.query", lambda: self._answer))


def _gpu(address: str, profiles: Mapping[tuple[int, int], str]) -> nvml.Gpu:
    slices = {(gi, ci): nvml.MigSlice(f"MIG-{address}-{gi}-{ci}", profile, 5 * GIB)
              for (gi, ci), profile in profiles.items()}
    return nvml.Gpu(uuid=f"GPU-{address}", model="NVIDIA A100-SXM4-40GB", memory=40 * GIB, slices=slices)
