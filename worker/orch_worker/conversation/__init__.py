"""Messages of a conversation: turns, text, tokens, and the records of archived turns."""
