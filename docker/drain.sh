#!/bin/sh
# Asks the container's process to drain and waits for its end, so that a second signal does not end it at once.
# Kubernetes runs this before its own SIGTERM (preStop). Another process than the container's: swarmflow-drain PID.
pid="${1:-1}"
kill -TERM "$pid"
while kill -0 "$pid" 2>/dev/null; do
    sleep 0.5
done
