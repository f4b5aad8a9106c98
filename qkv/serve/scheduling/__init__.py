"""Scheduling: request queues, continuous batching, streams of tokens, loaded models, worker processes."""
