"""Word vectors: word2vec as lecture 003 lists it, and what vectors are used for."""
