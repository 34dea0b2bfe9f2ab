"""Acts: the network, the clock and the threads behind the decisions of swarmflow.core."""
