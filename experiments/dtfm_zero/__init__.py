"""DT-FM, Figure 5: what ZeRO-S3 takes to communicate in the five cases, by arithmetic."""
