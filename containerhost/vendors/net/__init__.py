"""Network functions of any vendor."""
