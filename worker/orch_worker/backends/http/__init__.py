"""Requests to models over HTTP: transport, retries and classification of failures."""
