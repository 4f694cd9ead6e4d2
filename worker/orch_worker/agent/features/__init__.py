"""Extensions of an agent's turn. Each module implements one feature that can be switched on or off."""
