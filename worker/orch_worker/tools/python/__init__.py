"""The Python tool and its namespace."""
