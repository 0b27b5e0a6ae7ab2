# SPDX-License-Identifier: Apache-2.0
"""Run ``tools/test --vm`` in QEMU with an SR-IOV network card (igb) and two GPUs (virtio), under Debian's kernel."""
