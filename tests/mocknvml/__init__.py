# SPDX-License-Identifier: Apache-2.0
"""Read NVIDIA's mock of its management library: ``tools/test --mock DIR``."""
