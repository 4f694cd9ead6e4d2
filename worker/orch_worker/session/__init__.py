"""Session files: the transcript, the tree of entries, and the state computed from them."""
