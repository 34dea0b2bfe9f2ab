"""DT-FM, Figure 4: what the local search of its scheduler is worth."""
