"""HTTP server with batched requests and a page to try a model."""
