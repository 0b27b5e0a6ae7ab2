# SPDX-License-Identifier: Apache-2.0
"""Compute with the first GPU that CUDA shows: set memory, copy it back and compare it.

A standalone program, which `containerhost selftest` runs in a container: it needs Python and the driver's library
(CUDA driver API, cuda.h), and exits with status 3 without that library.
"""

import ctypes
import sys
from typing import Any

LIBRARY = "libcuda.so.1"
SIZE = 1 << 30  # bytes
PIECE = 1 << 24  # bytes copied back at a time
WORD = 0x5AA5C33C
ABSENT = 3


def main() -> int:
    try:
        cuda = ctypes.CDLL(LIBRARY)
    except OSError as error:
        print(error)
        return ABSENT
    return compute(cuda)


def compute(cuda: Any) -> int:
    """Compute, and return the exit status."""
    def call(name: str, *arguments: Any) -> None:
        status = getattr(cuda, name)(*arguments)
        if status:
            raise SystemExit(f"{name} failed: CUDA error {status}")

    device, context, memory = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
    call("cuInit", 0)
    call("cuDeviceGet", ctypes.byref(device), 0)
    call("cuCtxCreate_v2", ctypes.byref(context), 0, device)
    try:
        call("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(SIZE))
        call("cuMemsetD32_v2", memory, ctypes.c_uint(WORD), ctypes.c_size_t(SIZE // 4))
        piece, expected = ctypes.create_string_buffer(PIECE), WORD.to_bytes(4, sys.byteorder) * (PIECE // 4)
        for offset in range(0, SIZE, PIECE):
            call("cuMemcpyDtoH_v2", piece, ctypes.c_uint64(memory.value + offset), ctypes.c_size_t(PIECE))
            if piece.raw != expected:
                raise SystemExit(f"wrong content below offset {offset + PIECE}")
        call("cuMemFree_v2", memory)
    finally:
        call("cuCtxDestroy_v2", context)
    print(f"{SIZE >> 20} MiB of GPU memory set, copied and compared")
    return 0


if __name__ == "__main__":
    sys.exit(main())
