"""FusionLLM, Figures 10 and 11: an iteration of GPT2-XL over two clusters, by schedule and by compression."""
