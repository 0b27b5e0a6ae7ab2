# SPDX-License-Identifier: Apache-2.0
"""Start all containers of an MPI or ML job in a cloud, or none of them (gang start)."""
