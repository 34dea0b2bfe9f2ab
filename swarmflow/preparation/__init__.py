"""Makes ready: a model is checked, cut, and described for everybody, before there is a run of it."""
