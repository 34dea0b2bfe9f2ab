"""The choice of a peer of the next stage for each microbatch: routers, measured links, and negotiated flows."""
