"""Session files: transcript, entry tree and what is read back from them."""
