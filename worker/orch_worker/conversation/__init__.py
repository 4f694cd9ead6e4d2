"""Messages of a conversation: turns, text, tokens, and the records that stand for archived ones."""
