"""GWTF, Table VI: against the arrangement that knows all ways between the nodes."""
