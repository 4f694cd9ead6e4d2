"""Skill files, the catalog of skills and the tool that reads them."""
