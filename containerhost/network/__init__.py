"""Network links, interfaces and functions of the host, for containers."""
