# SPDX-License-Identifier: Apache-2.0
"""Draw a host: what was seen of it becomes a map, and the map text or a picture. Pure."""
