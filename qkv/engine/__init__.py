"""A plain model made fast for use: functions applied to a network from outside, never branches inside it."""
