"""One folder a table or figure of the papers."""
