"""Tasks: what a network is trained for and used for. Each is a source, a collate function, an objective, a head and a metric."""
