"""The solvers: what they find, what they cost, and the methods beside them."""
