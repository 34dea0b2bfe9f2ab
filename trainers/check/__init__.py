"""The check of a run before others are invited: by `swarmflow check`, and by every trainer that begins one."""
