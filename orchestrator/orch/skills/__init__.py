"""Skills: instructions for particular work, from programs, folders, packages and extensions."""
