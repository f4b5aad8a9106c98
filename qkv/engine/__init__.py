"""Fast inference and training on CPUs: functions applied to a plain network from outside, never branches inside it."""
