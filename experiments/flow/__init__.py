"""GWTF, Table V and Figure 7: flows that are negotiated against the exact optimum."""
