"""DT-FM, Figure 3: 64 GPUs from one data centre to eight cities of the world."""
