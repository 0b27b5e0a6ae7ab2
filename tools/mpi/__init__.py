# SPDX-License-Identifier: Apache-2.0
"""Provide what an MPI job on any cloud needs for a trial: an image, the job and what is to be seen of it."""
