"""The compute node in the words of nova and Placement."""
