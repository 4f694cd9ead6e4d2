"""One module for each API of a provider."""
