"""The agent tree as a pure state machine."""
