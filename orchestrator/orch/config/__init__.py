"""Configuration, paths, trust, models and logs."""
