"""What an orchestrator and an agent group by subject: `o.archives`, `o.hooks`, `agent.queue` and others."""
