"""Learning: the Learner, the optimizers, returns and Q-learning as pure functions."""
