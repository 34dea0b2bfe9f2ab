"""Plans for a user: given machines and their links, the strategies beside each other, a table and a picture."""
