"""Types that every layer shares: ids, errors, messages, policy and budget."""
