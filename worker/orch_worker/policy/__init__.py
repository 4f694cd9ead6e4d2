"""Permission rules, path rules and taint labels."""
