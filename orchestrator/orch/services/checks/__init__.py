"""What several services ask first: is the agent idle, and for local models alone?"""
