"""What two orch processes must agree on: data only. Imports msgspec and the standard library, nothing else."""
