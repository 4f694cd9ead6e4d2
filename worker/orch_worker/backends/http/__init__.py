"""Requests to models over HTTP: transport, retries and classified failures."""
