"""Requests and responses: routes, limits, headers, bodies, problems, and streams."""
