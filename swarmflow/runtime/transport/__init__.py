"""The network: the daemon of libp2p, the DHT, streams, frames, requests."""
