"""What the machines say to one another and to the runtime: types, messages, events, actions, time-outs."""
