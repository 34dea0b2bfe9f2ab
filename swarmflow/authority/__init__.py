"""Authorization: a run's owner, certificates, the run's access policy, and the access control of a process."""
