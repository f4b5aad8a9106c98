"""Tasks: what a network is asked to learn and to do. Each is a source, a collate function, an objective, a head and a metric."""
