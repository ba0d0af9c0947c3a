"""Commands about workflows and agents: their state, limits, schedules, costs, policies, and addresses."""
