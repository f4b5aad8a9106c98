"""Plan training on many devices: memory, traffic and time of each way to parallelise it, estimated beforehand."""
