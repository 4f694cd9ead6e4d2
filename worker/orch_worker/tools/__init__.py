"""The tools of an agent, and the presets that grant them."""
