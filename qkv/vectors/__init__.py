"""Word vectors: training (word2vec, lecture 003), files, nearest words, analogies, evaluation."""
