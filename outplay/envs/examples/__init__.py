"""Small environments that show one thing each.

>>> trainer = PPO("outplay.envs.examples:RepeatAfterMe", model={"use_lstm": True})
"""
