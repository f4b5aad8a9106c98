"""Training: one update, and the state that makes a resumed run equal an uninterrupted one."""
