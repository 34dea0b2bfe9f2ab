"""Which peer of the next stage a microbatch goes to: routers, the links that they measure, negotiated flows."""
