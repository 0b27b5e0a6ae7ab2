# SPDX-License-Identifier: Apache-2.0
"""Share the host's devices with Slurm: its configuration, and the devices of its jobs in the allocation records."""
