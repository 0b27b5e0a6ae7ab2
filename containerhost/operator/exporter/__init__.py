# SPDX-License-Identifier: Apache-2.0
"""Export this host's devices, allocations and their use to Prometheus (``containerhost exporter``)."""
