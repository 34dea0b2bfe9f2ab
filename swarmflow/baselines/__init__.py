"""The protocols that swarmflow is compared with, as small machines on the same network and computers.

docs/baselines.md describes what each does, from which source, and which choices favour it.
"""
