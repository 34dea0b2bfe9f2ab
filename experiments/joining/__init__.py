"""GWTF, Table IV and Figure 5: where joining nodes are put."""
