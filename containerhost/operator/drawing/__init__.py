# SPDX-License-Identifier: Apache-2.0
"""Draw a host: its data become a map, and the map becomes text or a picture. Pure."""
