# SPDX-License-Identifier: Apache-2.0
"""Write messages as NVIDIA's driver writes them to the kernel's log."""

LOADED = "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024"  # settles all


def xid(gpu: str, number: int, text: str = "pid='<unknown>', name=<unknown>") -> str:
    """:param gpu: its PCI address"""
    return f"NVRM: Xid (PCI:{gpu.rpartition('.')[0]}): {number}, {text}"
