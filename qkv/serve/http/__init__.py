"""HTTP layer: limits, errors, authentication, middleware, forms, server-sent events, static files, sockets, metrics."""
