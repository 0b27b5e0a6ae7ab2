"""What the command ``containerhost`` tells."""
