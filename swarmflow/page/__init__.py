"""The page that shows a run: a small HTTP server, and the page itself in `static/`."""
