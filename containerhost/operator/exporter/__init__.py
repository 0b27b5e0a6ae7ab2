# SPDX-License-Identifier: Apache-2.0
"""Export this host's devices, allocations and usage to Prometheus (``containerhost exporter``)."""
