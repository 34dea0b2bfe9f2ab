"""Plans: arrangements of devices that are computed in advance, with full knowledge of computers and links."""
