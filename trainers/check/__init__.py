"""What can be known of a run before anybody is invited to it: `swarmflow check`, and every trainer that begins one."""
