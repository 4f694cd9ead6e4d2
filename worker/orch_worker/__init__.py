"""Everything one agent is: its process, loop, transcript and tools."""
