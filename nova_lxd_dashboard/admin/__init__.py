# SPDX-License-Identifier: Apache-2.0
"""Show administrators the devices of all hosts, their holders, and which are faulty."""
