"""HTTP server: trained models behind standard APIs and a web page, with bounded requests and continuous batching."""
