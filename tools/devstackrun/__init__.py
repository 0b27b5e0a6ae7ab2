# SPDX-License-Identifier: Apache-2.0
"""DevStack with this project's plug-in in a system container, on emulated hardware."""
