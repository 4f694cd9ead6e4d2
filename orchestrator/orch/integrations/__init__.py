"""Archival for the agents of other frameworks. Each module imports its framework on first use.

    openai_agents      the OpenAI Agents SDK
    langchain          LangChain's `create_agent`, and with it LangGraph and deepagents
    claude_agent_sdk   the Claude Agent SDK, through the proxy

pydantic-ai needs no module: pass an HTTP client of `orch.gateway` to its provider.
"""
