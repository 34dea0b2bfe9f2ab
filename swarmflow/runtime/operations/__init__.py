"""What a person asks of processes: finding a run, its status, logs, folders, exports, the end."""
