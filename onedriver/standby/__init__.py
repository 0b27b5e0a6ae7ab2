"""A process of root's on a node that has loaded a driver and forks for each call: most of a short call's time would be
the loading."""
