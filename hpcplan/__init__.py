# SPDX-License-Identifier: Apache-2.0
"""Plan HPC and ML jobs, independent of hosts: number of containers, processes, affinity, task groups, network. Pure."""
