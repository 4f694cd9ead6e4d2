"""The supervisor applies the tree's decisions to processes, timers and files."""
