"""Like machines on fast links, where nothing has to be decided: swarmflow beside fixed pipelines."""
