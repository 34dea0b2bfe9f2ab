"""What Prometheus and Grafana get: the metrics of a whole swarm, its targets, rules, dashboards and their docs."""
