"""GWTF, Tables II and III: peers that crash and come back."""
