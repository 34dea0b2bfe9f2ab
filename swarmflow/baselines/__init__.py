"""What swarmflow is compared with: other protocols, as small machines on the same network and computers.

docs/baselines.md says what each does, from which source, and what was chosen in its favour.
"""
