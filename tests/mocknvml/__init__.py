# SPDX-License-Identifier: Apache-2.0
"""What the product makes of NVIDIA's mock of its management library: ``tools/test --mock DIR``."""
