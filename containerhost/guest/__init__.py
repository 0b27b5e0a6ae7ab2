# SPDX-License-Identifier: Apache-2.0
"""Notify a container of its resources; includes the helper that runs in the guest."""
