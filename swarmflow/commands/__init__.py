"""Commands of the swarmflow command line that belong to no role."""
