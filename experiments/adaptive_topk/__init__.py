"""What it costs in loss to send the largest numbers of a token alone: FusionLLM's AdaTopK."""
