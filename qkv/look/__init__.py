"""Looking inside: data in, pictures out."""
