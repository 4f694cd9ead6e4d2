"""The formats of model APIs: request bodies, readers of events, and reported errors. Without I/O and without SDKs."""
