# SPDX-License-Identifier: Apache-2.0
"""What trying an MPI job on a cloud needs, whatever the cloud: an image, the job and what is to be seen of it."""
