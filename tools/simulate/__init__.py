"""`make simulate`: many seeds of the simulation, or one of them with its trace."""
