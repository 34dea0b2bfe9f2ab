"""Llama-3-8B on machines behind slow links: what a step takes, beside what it has to take."""
