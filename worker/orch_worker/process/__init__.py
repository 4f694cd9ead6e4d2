"""The life of a worker process: zygote, shim and initialization."""
