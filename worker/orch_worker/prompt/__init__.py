"""The parts of a request that are not the conversation."""
