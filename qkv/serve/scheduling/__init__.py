"""Scheduling: queues, batches, streams of tokens, worker processes."""
