"""Models of the kinds that users post: each has a true posterior or a reason to be refused."""
