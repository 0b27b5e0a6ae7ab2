# SPDX-License-Identifier: Apache-2.0
"""Read this host's resources: devices, processors and memory, and the operator's decisions about them."""
