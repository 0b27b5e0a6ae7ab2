# SPDX-License-Identifier: Apache-2.0
"""Suggest what a cloud could offer of this host's devices, in cloud-independent terms. Pure."""
