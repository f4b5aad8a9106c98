"""HTTP: middleware, authentication, errors, static files, sockets."""
