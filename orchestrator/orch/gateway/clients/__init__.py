"""Programs that `orch wrap` starts so that their requests go through the proxy."""
