"""What the servers of the package share: where they listen, who may talk to them, how they start and stop."""
