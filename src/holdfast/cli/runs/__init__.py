"""Commands about runs: start, list, show, follow, change, and delete them, and answer their approvals."""
