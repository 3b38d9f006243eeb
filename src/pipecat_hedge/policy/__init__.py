"""What to send and when: policies, the planner, the budget and what was learned of latencies."""
