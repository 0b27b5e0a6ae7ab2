# SPDX-License-Identifier: Apache-2.0
"""The machine in which ``tools/test --vm`` runs: QEMU with an SR-IOV network card (igb) and two GPUs (virtio), under a
Debian kernel with its own drivers."""
