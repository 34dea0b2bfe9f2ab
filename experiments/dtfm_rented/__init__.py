"""DT-FM, Figure 7: larger models on 32 rented GPUs in two places."""
