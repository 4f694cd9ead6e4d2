"""The start and end of worker processes: zygote, shim and initialization."""
