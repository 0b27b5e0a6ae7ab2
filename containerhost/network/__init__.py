# SPDX-License-Identifier: Apache-2.0
"""Network links, interfaces and functions of the host, for containers."""
