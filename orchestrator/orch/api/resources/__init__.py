"""Groups of methods of orchestrators and agents by subject, such as `o.archives`, `o.hooks` and `agent.queue`."""
