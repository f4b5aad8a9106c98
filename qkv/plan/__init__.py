"""Plan training on many devices: memory, traffic and time of each way to divide it, before anything runs."""
