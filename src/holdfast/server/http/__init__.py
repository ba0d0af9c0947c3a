"""How requests are read and responses written: routes, limits, headers, bodies, problems and streams."""
