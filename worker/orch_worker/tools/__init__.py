"""What an agent can do: tools, and the presets that grant them."""
