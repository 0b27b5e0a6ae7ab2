"""What a container is told of its own resources, and the helper that listens there."""
