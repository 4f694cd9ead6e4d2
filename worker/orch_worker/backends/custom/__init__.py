"""Backends that users write: the base class, the stream of response items, and the conversation with the model."""
