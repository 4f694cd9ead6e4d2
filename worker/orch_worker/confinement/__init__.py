"""What a tool's process is kept from: rights, files, the network, other processes. Linux."""
