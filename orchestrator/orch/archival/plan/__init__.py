"""What is archived when: triggers, gains and the merging of records."""
