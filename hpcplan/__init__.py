# SPDX-License-Identifier: Apache-2.0
"""Plan HPC and ML jobs: number of containers, processes, affinity, task groups, the network. Pure: knows no host."""
