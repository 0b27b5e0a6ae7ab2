"""NVIDIA GPUs: description, health, reset, libraries and partitioning (MIG)."""
